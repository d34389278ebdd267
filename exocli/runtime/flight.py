"""A request on its way through a session: what is known of it, and the ends that a session writes itself."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any

from exocli.cancel import CancelToken
from exocli.types import (
    Event,
    Finished,
    Phase,
    Progress,
    Reasoning,
    Receipt,
    Request,
    Status,
    Text,
    Timing,
    ToolCall,
    Usage,
)


@dataclass(eq=False)
class Flight:
    """A request from its first moment to its Finished, as `exo ps` shows it."""

    request: Request
    cancel: CancelToken
    owner: str = ""
    """Who asked: in the queue, owners take turns."""
    reserves: int = 0
    """Tokens that it may come to, prompt and reply."""
    started: float = field(default_factory=time.monotonic)
    phase: Phase = "queued"
    processed: int = 0
    total: int = 0
    cached: int = 0
    tokens: int = 0
    queue: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    submitted: float | None = None
    first_text: float | None = None
    finished: Finished | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        return self.request.id

    def put(self, event: Event) -> None:
        match event:
            case Progress(processed=processed, total=total, cached=cached):
                self.phase = "prefill"
                self.processed, self.total, self.cached = processed, total, cached
            case Text() | Reasoning() | ToolCall():
                if self.first_text is None:
                    self.first_text = time.monotonic()
                self.phase = "decode"
                self.tokens += 1
            case Status(phase=phase):
                self.phase = phase
            case Finished():
                self.finished = event
                self.done.set()
        self.queue.put_nowait(event)


async def unless_cancelled(work: Any, cancel: CancelToken) -> Any:
    """The result of `work`, or None as soon as the token is cancelled (the work is cancelled too).

    Work that fails after the cancel was asked for is None as well: nobody wants it any more.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    stopped = asyncio.Event()
    forget = cancel.on_cancel(lambda: loop.call_soon_threadsafe(stopped.set))
    stop = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not (task.exception() and cancel.cancelled):
            return task.result()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it
        return None
    finally:
        forget()
        stop.cancel()
        task.cancel()


def never_started(flight: Flight) -> Finished:
    """A cancel that came before the engine saw the request."""
    phase: Phase = "loading" if flight.phase == "loading" else "queued"
    asked = flight.cancel.asked_at
    latency = (time.monotonic() - asked) * 1000 if asked is not None else 0.0
    receipt = Receipt(phase=phase, total=flight.total, ranks=0, latency_ms=round(latency, 1))
    usage = Usage(prompt_tokens=flight.total)
    return Finished(id=flight.id, reason="cancelled", cancel=receipt, usage=usage)


def measured(flight: Flight, finished: Finished) -> Finished:
    """Fill in the timing where the backend has not."""
    if finished.timing != Timing():
        return finished
    now = time.monotonic()
    usage = finished.usage
    ttft = prefill = decode = 0.0
    if flight.first_text is not None:
        ttft = flight.first_text - flight.started
        if flight.submitted is not None and flight.first_text > flight.submitted:
            prefill = (usage.prompt_tokens - usage.cached_tokens) / (flight.first_text - flight.submitted)
        if usage.completion_tokens > 1 and now > flight.first_text:
            decode = (usage.completion_tokens - 1) / (now - flight.first_text)
    elif flight.request.task == "embed" and flight.submitted is not None and now > flight.submitted:
        prefill = usage.prompt_tokens / (now - flight.submitted)  # there is nothing to decode
    timing = Timing(
        ttft_s=round(ttft, 4),
        prefill_tps=round(prefill, 1),
        decode_tps=round(decode, 1),
        total_s=round(now - flight.started, 4),
    )
    return replace(finished, timing=timing)
