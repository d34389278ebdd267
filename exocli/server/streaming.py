"""How a reply is put on the wire: SSE or JSON lines, with keepalives, progress and the end of the reader.

An adapter (openai_chat.py and its like) implements `Reply`; `frames` runs it over a request's events.
Knows no API in particular.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request as HttpRequest

from exocli.errors import ExoError, from_dict
from exocli.server.body import ClientGone
from exocli.server.problems import body_of, encode
from exocli.server.requests import Running, receipt_of
from exocli.types import Event, Finished, Progress, Reasoning, Request, Status, Text, ToolCall

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What an API's request asks for. `request` has neither id nor model name yet; `timeout` in seconds;
    `keep_alive` in seconds, None = as it is; `empty`: nothing to answer, only load (or unload);
    `echo`: the reply begins with the prompt; `encoding`: how vectors are written; `one_tool_call`: of
    several calls only the first is wanted; `mirrored`: what the response repeats of the request."""

    request: Request
    model: str | None
    stream: bool = False
    include_usage: bool = False
    return_progress: bool = False
    timeout: float | None = None
    keep_alive: float | None = None
    empty: bool = False
    echo: bool = False
    encoding: Literal["float", "base64"] = "float"
    one_tool_call: bool = False
    mirrored: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Collected:
    """A whole reply, for those who do not stream."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[dict[str, Any]] | None = None
    events: list[Event] = field(default_factory=list)
    _finished: Finished | None = None

    def add(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case Text(text=text, logprobs=logprobs):
                self.text.append(text)
                if logprobs is not None:
                    self.logprobs = [*(self.logprobs or []), *logprobs]
            case Reasoning(text=text):
                self.reasoning.append(text)
            case ToolCall():
                self.calls.append(event)
            case Finished():
                self._finished = event

    @property
    def finished(self) -> Finished:
        """How it ended; only to be asked of one that did."""
        assert self._finished is not None
        return self._finished

    @property
    def begun(self) -> bool:
        return bool(self.text or self.reasoning or self.calls)


class Reply(ABC):
    """One reply in one API's words. Stateful, synchronous, no I/O: events in, frames out."""

    media_type = "text/event-stream"
    api = "openai"
    """Whose error shape."""

    def __init__(self, call: Call, running: Running) -> None:
        self.call = call
        self.running = running
        self.created = running.created
        self.model = call.model or running.model.name

    @abstractmethod
    def on(self, event: Event) -> Iterator[bytes]:
        """The frames of one event. Started opens; Finished (never an error) ends with the end marker."""

    @abstractmethod
    def whole(self, collected: Collected) -> dict[str, Any]:
        """The body where nothing is streamed."""

    def progress(self, event: Progress) -> Iterator[bytes]:
        """What `return_progress` asks for, in a frame that the API's clients tolerate."""
        yield from ()

    def failed(self, error: ExoError) -> Iterator[bytes]:
        """The end of a stream that broke."""
        yield sse(body_of(error, self.api, self.running.id))

    def keepalive(self) -> bytes:
        return comment("keepalive")

    def status(self, event: Status | Progress) -> Iterator[bytes]:
        """Comments: what a person with curl sees and a client passes over."""
        if isinstance(event, Progress):
            data = {
                "model": self.model,
                "processed_tokens": event.processed,
                "total_tokens": event.total,
                "cached_tokens": event.cached,
            }
            yield comment(f"prefill_progress {json.dumps(data)}")
        elif event.phase == "loading":
            data = {"model": self.model, "done": event.done, "total": event.total, "rank": event.rank}
            yield comment(f"loading {json.dumps({k: v for k, v in data.items() if v is not None})}")
        else:
            yield comment(f"queued {json.dumps({'position': event.position})}")

    # -------------------------------------------------------------------------- shared by adapters

    def receipt(self, finished: Finished) -> dict[str, Any]:
        """`{"exo": …}` for a cancelled reply, else nothing."""
        receipt = receipt_of(finished, self.running.cancel)
        return {"exo": receipt} if receipt else {}

    def prompt_progress(self, event: Progress) -> dict[str, Any]:
        elapsed = (time.monotonic() - self.running.started) * 1000
        return {
            "total": event.total,
            "cache": event.cached,
            "processed": event.processed,
            "time_ms": round(elapsed),
        }


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event (WHATWG HTML, section 9.2). The data is JSON, so it has no line breaks."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + (data if isinstance(data, bytes) else encode(data)) + b"\n\n"


def comment(text: str) -> bytes:
    return f": {text}\n\n".encode("ascii", "backslashreplace")


def line(data: Any) -> bytes:
    return encode(data) + b"\n"


DONE = sse(b"[DONE]")


async def frames(running: Running, reply: Reply, keepalive: float) -> AsyncIterator[bytes]:
    """A reply as bytes, from the first event to the end marker; one write for all that is there."""
    async for events in running.batches(keepalive):
        if data := b"".join(frame for event in events for frame in _frames_of(event, reply)):
            yield data
        elif not events:
            yield reply.keepalive()


def _frames_of(event: Event, reply: Reply) -> Iterator[bytes]:
    match event:
        case Progress() if reply.call.return_progress:
            yield from reply.progress(event)
        case Progress() | Status():
            yield from reply.status(event)
        case ToolCall(index=index) if index > 0 and reply.call.one_tool_call:
            return
        case Finished(error=error) if error is not None:
            yield from reply.failed(from_dict(error))
        case _:
            yield from reply.on(event)


async def collect(running: Running, one_tool_call: bool = False) -> Collected:
    collected = Collected()
    async for event in running.events():
        if not (one_tool_call and isinstance(event, ToolCall) and event.index > 0):
            collected.add(event)
    return collected


def respond(body: AsyncIterator[bytes], media_type: str, headers: dict[str, str]) -> EventSourceResponse:
    """A streaming response that listens for a disconnect even while nothing is sent.

    starlette's own does not (under ASGI 2.4); this one does it for JSON lines as well. Pings are ours."""
    return EventSourceResponse(body, headers=headers, media_type=media_type, ping=0)


async def unless_gone(http: HttpRequest, work: Awaitable[T]) -> T:
    """The result of `work`; raises ClientGone (the work is cancelled) once the connection is closed.
    Only after the body has been read."""

    async def listen() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(listen())
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
