"""What `exo bench` measures, through a Session alone. Ratios come from one run: machines are noisy.

A backend may name a `baseline` in its spec: an engine that does the same work bare, inside a worker and
without a word to the parent. Rounds with it alternate with ours, and the overhead is the ratio.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from dataclasses import replace
from typing import Any

from exocli import benchmark_variants
from exocli.benchmark_requests import Note, Plan, Sample, cancels, one, request, resident_mb
from exocli.errors import from_dict
from exocli.runtime.session import Session
from exocli.types import Finished, Reasoning, Text

__all__ = ["Note", "Plan", "measure"]

STREAMS = 8
ROUNDS_A_START = 4
"""Rounds before ours and the baseline are both started anew, in the other order. Where a process's weights
happen to lie in memory makes several percent for as long as it lives (two of ours differ by as much)."""
FIGURES_TOKENS = 128
"""Of a reply in which a backend measures itself."""
WARM = 20
"""Requests after which memory is taken as settled, to compare with the end."""


async def measure(session: Session, plan: Plan, note: Note) -> dict[str, Any]:
    """The whole report as plain data. Raises what a request ended with, if it was an error."""
    report: dict[str, Any] = {"model": session.model, "backend": session.spec.name}
    try:
        start = time.monotonic()
        await session.load()
        report["load_s"] = round(time.monotonic() - start, 3)
        report |= await _speed(session, plan, note)
        report["batch"] = await _batch(session, plan, note)
        report |= await _figures(session, plan, note)
        report |= await benchmark_variants.compare(session, plan, note)
        if plan.cancels:
            report["cancel"] = await cancels(session, plan, plan.cancels, note)
        if plan.requests:
            report["memory"] = await _memory(session, plan, note)
    finally:
        await session.close()
    return report


# ---------------------------------------------------------------------------------------------- speed


async def _speed(session: Session, plan: Plan, note: Note) -> dict[str, Any]:
    baseline = _baseline(session)
    both = [session] if baseline is None else [session, baseline]
    ours: list[Sample] = []
    bare: list[Finished] = []
    try:
        for number in range(plan.rounds):
            note(f"speed: round {number + 1} of {plan.rounds}")
            if baseline is not None and number and number % ROUNDS_A_START == 0:
                both.reverse()
                for each in both:
                    await each.kill()
            if number % ROUNDS_A_START == 0:
                for each in both:
                    await each.load()
                await one(session, request(f"settle {number}", plan, tokens=1))  # its chunk size
            ours.append(await one(session, request(f"round {number}", plan)))
            if baseline is not None:
                asked = replace(request(f"round {number}", plan), options={"chunk": session.chunk})
                bare.append((await one(baseline, asked)).finished)
    finally:
        if baseline is not None:
            await baseline.close()
    report: dict[str, Any] = {
        "prompt_tokens": ours[0].prompt,
        "reply_tokens": ours[0].completion,
        "prefill_tps": _median([s.prefill_tps for s in ours]),
        "decode_tps": _median([s.decode_tps for s in ours]),
        "ttft_s": round(statistics.median(s.ttft for s in ours), 4),
    }
    if bare:
        # Pairs of neighbours, so that a machine that slows down does so for both.
        prefill, decode = zip(*(s.overhead(b.timing) for s, b in zip(ours, bare, strict=True)), strict=True)
        report["overhead"] = {
            "prefill": round(statistics.median(prefill), 4),
            "decode": round(statistics.median(decode), 4),
            "against": session.spec.baseline,
            "rounds": plan.rounds,
        }
    return report


def _baseline(session: Session) -> Session | None:
    if session.spec.baseline is None:
        return None
    return session.like(replace(session.spec, protocol="stream", open=session.spec.baseline))


async def _figures(session: Session, plan: Plan, note: Note) -> dict[str, Any]:
    """What a backend measures of itself (BackendSpec.figures), over the replies of all rounds."""
    if session.spec.figures is None:
        return {}
    said = "{}"
    async with session.like(replace(session.spec, open=session.spec.figures)) as other:
        for number in range(plan.rounds):
            note(f"figures: round {number + 1} of {plan.rounds}")
            async for event in other.stream(request(f"figures {number}", plan, tokens=FIGURES_TOKENS)):
                if isinstance(event, Text):
                    said = event.text
                elif isinstance(event, Finished) and event.reason == "error":
                    raise from_dict(event.error or {})
    figures: dict[str, dict[str, float]] = json.loads(said)
    return {name: {key: round(value, 4) for key, value in each.items()} for name, each in figures.items()}


async def _batch(session: Session, plan: Plan, note: Note) -> dict[str, Any]:
    """Decode rate of several requests at once against one alone."""
    streams = min(STREAMS, session.capabilities.max_concurrency)
    note(f"batch: {streams} at once")
    alone = await one(session, request("alone", plan, words=20))

    times: list[list[float]] = [[] for _ in range(streams)]

    async def follow(number: int) -> None:
        async for event in session.stream(request(f"batch {number}", plan, words=20)):
            if isinstance(event, (Text, Reasoning)):
                times[number].append(time.perf_counter())

    await asyncio.gather(*(follow(number) for number in range(streams)))
    # Only the time in which all of them decode: before it, prefill takes its share of every step.
    begin = max((each[0] for each in times if each), default=0.0)
    end = min((each[-1] for each in times if each), default=0.0)
    tokens = sum(begin < at <= end for each in times for at in each)
    rate = tokens / (end - begin) if end > begin else 0.0
    return {
        "streams": streams,
        "decode_tps": round(rate, 1),
        "speedup": round(rate / alone.decode_tps, 2) if alone.decode_tps else 0.0,
    }


# --------------------------------------------------------------------------------------------- memory


async def _memory(session: Session, plan: Plan, note: Note) -> dict[str, Any]:
    """Resident memory in MB, and how much the workers' grew over the requests, in percent."""
    settled = 0.0
    for number in range(plan.requests):
        if number % 20 == 0:
            note(f"memory: request {number} of {plan.requests}")
        if number == WARM:
            settled = resident_mb(session.pids)
        await one(session, request(f"memory {number}", plan, words=20, tokens=4))
    now = resident_mb(session.pids)
    return {
        "parent_mb": round(resident_mb([os.getpid()]), 1),
        "worker_mb": round(now, 1),
        "requests": plan.requests,
        "growth_pct": round(100 * (now - settled) / settled, 2) if settled else None,
    }


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 1)
