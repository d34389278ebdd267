"""One request of a benchmark and what it shows from the parent's side: speed, or how soon a cancel is done.

What benchmarks.py and benchmark_variants.py share, and how memory is read. Knows a Session and nothing of
backends.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from exocli.cancel import CancelToken
from exocli.errors import Unavailable, from_dict
from exocli.runtime.session import Session
from exocli.types import Finished, Message, Progress, Reasoning, Request, Text, Timing

Note = Callable[[str], None]


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
    """One request from the parent's side; seconds. `text` is what it said, without its thoughts. `decode`
    runs from its first text to its last, `read` from its start to the end of its prefill, 0 where no progress
    came. A text may show later than its token: what a tokenizer holds back until the next one is not time
    that the engine took."""

    finished: Finished
    text: str
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


def prompt(words: int, salt: str) -> str:
    """A text whose very beginning differs by `salt`, so that no kept prefix serves."""
    lines = [
        f"{salt}: line {i} of this report gives {i * 37 % 101} as its result." for i in range(words // 10 + 1)
    ]
    return " ".join(lines)


def request(salt: str, plan: Plan, words: int | None = None, tokens: int | None = None) -> Request:
    text = prompt(plan.prompt_words if words is None else words, salt)
    text += "\nContinue this list with as many further lines as you can."
    messages = (Message(role="user", content=text),)
    return Request(messages=messages, max_tokens=plan.reply_tokens if tokens is None else tokens)


async def one(session: Session, request: Request, cancel: CancelToken | None = None) -> Sample:
    start = time.perf_counter()
    first = last = read = start
    said: list[str] = []
    async for event in session.stream(request, cancel):
        if isinstance(event, Progress):
            read = time.perf_counter()
        if isinstance(event, (Text, Reasoning)):
            last = time.perf_counter()
            first = last if first == start else first
        if isinstance(event, Text):
            said.append(event.text)
        if isinstance(event, Finished):
            if event.reason == "error":
                raise from_dict(event.error or {})
            usage = event.usage
            times = (first - start, read - start, last - first)
            return Sample(event, "".join(said), *times, usage.prompt_tokens, usage.completion_tokens)
    raise AssertionError("a stream ends with Finished")


async def cancels(session: Session, plan: Plan, count: int, note: Note) -> dict[str, Any]:
    """So many cancels at random points of prefill and decode; milliseconds until the last rank had left."""
    dice = random.Random(plan.seed)
    latencies: list[float] = []
    phases: dict[str, int] = {}
    for number in range(count):
        if number % 10 == 0:
            note(f"cancel: {number} of {count}")
        cancel = CancelToken()
        in_prefill = number % 2 == 0
        asked = request(f"cancel {number}", plan, 800) if in_prefill else request(f"c{number}", plan, 20)
        wait = dice.uniform(0.0, 0.4)
        timer: asyncio.TimerHandle | None = None
        async for event in session.stream(asked, cancel):
            begun = isinstance(event, Progress) if in_prefill else isinstance(event, (Text, Reasoning))
            if begun and timer is None:
                timer = asyncio.get_running_loop().call_later(wait, cancel.cancel)
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


def resident_mb(pids: Collection[int], *, children: bool = False) -> float:
    """Megabytes of memory of these processes, and of their children. Raises Unavailable without `ps`, which
    answers in KiB on Linux and on macOS alike."""
    try:
        done = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,rss="], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        raise Unavailable("Memory is read by the program ps, which does not work here: install it.") from None
    rows = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    return sum(rss for own, parent, rss in rows if own in pids or (children and parent in pids)) / 1024
