"""Short ways to open the engine on a server and to ask it something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exocli import CancelToken, Event, Finished, Message, OpenContext, Request, StreamEngine, Text, ToolCall

from exo_remote.opening import open_engine
from exo_remote.options import Options


def context(url: str, folder: Path, model: str = "", defaults: Any = None, **options: Any) -> OpenContext:
    return OpenContext(
        backend="remote",
        model=model,
        options=Options(url=url, **options),
        cache_dir=folder,
        defaults=defaults or {},
        log=lambda text: None,
        progress=lambda done, total: None,
        ask=lambda command: None,
        cancel=CancelToken(),
    )


@asynccontextmanager
async def opened(url: str, folder: Path, model: str = "", **more: Any) -> AsyncIterator[StreamEngine]:
    """The engine, opened in a thread of its own as the core does it."""
    engine = await asyncio.to_thread(open_engine, context(url, folder, model, **more))
    try:
        yield engine
    finally:
        await engine.aclose()


def chat(text: str = "Hi", **fields: Any) -> Request:
    return Request(messages=(Message(role="user", content=text),), **fields)


@dataclass
class Answer:
    events: list[Event] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Text))

    @property
    def calls(self) -> list[ToolCall]:
        return [e for e in self.events if isinstance(e, ToolCall)]

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished)
        return last

    @property
    def error(self) -> dict[str, Any]:
        assert self.finished.reason == "error" and self.finished.error is not None, self.events
        return self.finished.error

    def of(self, kind: type[Any]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


async def ask(
    engine: StreamEngine,
    request: Request | None = None,
    *,
    cancel: CancelToken | None = None,
    at: Callable[[Event], bool] | None = None,
) -> Answer:
    """Everything up to the one Finished; cancelled at the first event for which `at` holds."""
    cancel, request = cancel or CancelToken(), request or chat()
    got = Answer()
    async with asyncio.timeout(30):
        async for event in engine.stream(request, cancel):
            got.events.append(event)
            if at is not None and at(event):
                cancel.cancel()
    assert [e for e in got.events if isinstance(e, Finished)] == got.events[-1:]
    assert {e.id for e in got.events} == {request.id}
    return got
