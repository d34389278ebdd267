"""What `exo bench` measures, through a Session alone. Ratios come from one run: machines are noisy.

A backend may name a `baseline` in its spec: an engine that does the same work bare, inside a worker and
without a word to the parent. Rounds with it alternate with ours, and the overhead is the ratio.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from exocli import benchmark_variants
from exocli.cancel import CancelToken
from exocli.errors import from_dict
from exocli.runtime.session import Session
from exocli.types import Finished, Message, Progress, Reasoning, Request, Text, Timing

Note = Callable[[str], None]

STREAMS = 8
ROUNDS_A_START = 4
"""Rounds before ours and the baseline are both started anew, in the other order. Where a process's weights
happen to lie in memory makes several percent for as long as it lives (two of ours differ by as much)."""
WARM = 20
"""Requests after which memory is taken as settled, to compare with the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure; tokens of the prompt and of the reply of a round."""

    rounds: int = 5
    cancels: int = 60
    requests: int = 200
    prompt_words: int = 300
    reply_tokens: int = 48
    seed: int = 1


@dataclass
class Sample:
    """One request from the parent's side; seconds. `decode` runs from its first text to its last, `read`
    from its start to the end of its prefill, 0 where no progress came. A text may show later than its token:
    what a tokenizer holds back until the next one is not time that the engine took."""

    finished: Finished
    ttft: float
    read: float
    decode: float
    prompt: int
    completion: int

    @property
    def prefill_tps(self) -> float:
        return (self.prompt - self.finished.usage.cached_tokens) / self.ttft if self.ttft else 0.0

    @property
    def decode_tps(self) -> float:
        return (self.completion - 1) / self.decode if self.decode else 0.0

    def overhead(self, bare: Timing) -> tuple[float, float]:
        """Of prefill and decode against a baseline's, 0.03 = 3 % slower, by the same clock: to the prefill's
        end and from there to the last token, or where the baseline does not tell it by the first text."""
        if not bare.prefill_tps or not self.read:
            return self.ttft / bare.ttft_s - 1, bare.decode_tps / self.decode_tps - 1
        fresh = self.prompt - self.finished.usage.cached_tokens
        rate = self.completion / (self.ttft + self.decode - self.read)
        return bare.prefill_tps * self.read / fresh - 1, bare.decode_tps / rate - 1


async def measure(session: Session, plan: Plan, note: Note) -> dict[str, Any]:
    """The whole report as plain data. Raises what a request ended with, if it was an error."""
    dice = random.Random(plan.seed)
    report: dict[str, Any] = {"model": session.model, "backend": session.spec.name}
    try:
        start = time.monotonic()
        await session.load()
        report["load_s"] = round(time.monotonic() - start, 3)
        report |= await _speed(session, plan, note)
        report["batch"] = await _batch(session, plan, note)
        report |= await benchmark_variants.compare(session, plan.rounds, note)
        if plan.cancels:
            report["cancel"] = await _cancels(session, plan, dice, note)
        if plan.requests:
            report["memory"] = await _memory(session, plan, note)
    finally:
        await session.close()
    return report


# ---------------------------------------------------------------------------------------------- speed


def _prompt(words: int, salt: str) -> str:
    """A text whose very beginning differs by `salt`, so that no kept prefix serves."""
    lines = [
        f"{salt}: line {i} of this report gives {i * 37 % 101} as its result." for i in range(words // 10 + 1)
    ]
    return " ".join(lines)


def _request(salt: str, plan: Plan, words: int | None = None, tokens: int | None = None) -> Request:
    text = _prompt(plan.prompt_words if words is None else words, salt)
    text += "\nContinue this list with as many further lines as you can."
    messages = (Message(role="user", content=text),)
    return Request(messages=messages, max_tokens=plan.reply_tokens if tokens is None else tokens)


async def _one(session: Session, request: Request, cancel: CancelToken | None = None) -> Sample:
    start = time.perf_counter()
    first = last = read = start
    async for event in session.stream(request, cancel):
        if isinstance(event, Progress):
            read = time.perf_counter()
        if isinstance(event, (Text, Reasoning)):
            last = time.perf_counter()
            first = last if first == start else first
        if isinstance(event, Finished):
            if event.reason == "error":
                raise from_dict(event.error or {})
            usage = event.usage
            times = (first - start, read - start, last - first)
            return Sample(event, *times, usage.prompt_tokens, usage.completion_tokens)
    raise AssertionError("a stream ends with Finished")


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
                for one in both:
                    await one.kill()
            if number % ROUNDS_A_START == 0:
                for one in both:
                    await one.load()
                await _one(session, _request(f"settle {number}", plan, tokens=1))  # its chunk size
            ours.append(await _one(session, _request(f"round {number}", plan)))
            if baseline is not None:
                request = replace(_request(f"round {number}", plan), options={"chunk": session.chunk})
                bare.append((await _one(baseline, request)).finished)
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


async def _batch(session: Session, plan: Plan, note: Note) -> dict[str, Any]:
    """Decode rate of several requests at once against one alone."""
    streams = min(STREAMS, session.capabilities.max_concurrency)
    note(f"batch: {streams} at once")
    alone = await _one(session, _request("alone", plan, words=20))

    times: list[list[float]] = [[] for _ in range(streams)]

    async def one(number: int) -> None:
        async for event in session.stream(_request(f"batch {number}", plan, words=20)):
            if isinstance(event, (Text, Reasoning)):
                times[number].append(time.perf_counter())

    await asyncio.gather(*(one(number) for number in range(streams)))
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


# -------------------------------------------------------------------------------------------- cancels


async def _cancels(session: Session, plan: Plan, dice: random.Random, note: Note) -> dict[str, Any]:
    """Cancels at random points of prefill and decode; milliseconds until the last rank had left."""
    latencies: list[float] = []
    phases: dict[str, int] = {}
    for number in range(plan.cancels):
        if number % 10 == 0:
            note(f"cancel: {number} of {plan.cancels}")
        cancel = CancelToken()
        request = _request(f"cancel {number}", plan, words=800)
        in_prefill = number % 2 == 0
        wait = dice.uniform(0.0, 0.4)
        asyncio_loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        async for event in session.stream(
            request if in_prefill else _request(f"c{number}", plan, 20), cancel
        ):
            begun = isinstance(event, Progress) if in_prefill else isinstance(event, (Text, Reasoning))
            if begun and timer is None:
                timer = asyncio_loop.call_later(wait, cancel.cancel)
            if isinstance(event, Finished) and event.cancel is not None:
                latencies.append(event.cancel.latency_ms)
                phases[event.cancel.phase] = phases.get(event.cancel.phase, 0) + 1
        if timer is not None:
            timer.cancel()
    latencies.sort()
    return {
        "n": len(latencies),
        "p50_ms": _quantile(latencies, 0.50),
        "p99_ms": _quantile(latencies, 0.99),
        "max_ms": latencies[-1] if latencies else 0.0,
        "phases": phases,
    }


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


# --------------------------------------------------------------------------------------------- memory


async def _memory(session: Session, plan: Plan, note: Note) -> dict[str, Any]:
    """Resident memory in MB, and how much the workers' grew over the requests, in percent."""
    settled = 0.0
    for number in range(plan.requests):
        if number % 20 == 0:
            note(f"memory: request {number} of {plan.requests}")
        if number == WARM:
            settled = _workers_mb(session)
        await _one(session, _request(f"memory {number}", plan, words=20, tokens=4))
    now = _workers_mb(session)
    return {
        "parent_mb": _rss_mb(os.getpid()),
        "worker_mb": now,
        "requests": plan.requests,
        "growth_pct": round(100 * (now - settled) / settled, 2) if settled else None,
    }


def _workers_mb(session: Session) -> float:
    return round(sum(_rss_mb(pid) for pid in session.pids), 1)


def _rss_mb(pid: int) -> float:
    """`ps` answers in KiB on Linux and on macOS alike."""
    done = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return round(int(done.stdout.strip() or 0) / 1024, 1)


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 1)
