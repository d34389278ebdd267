"""Short ways to ask the real model something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from exocli import CancelToken, Event, Finished, Message, Progress, Request, Text
from exocli.runtime.session import Session

DOCUMENT = " ".join(f"Item {i} of the list has the value {i * 37 % 101}." for i in range(18))
"""About 250 tokens."""


def ask(*texts: str, **fields: Any) -> Request:
    """A chat request of user and assistant turns by turns."""
    roles = ("user", "assistant")
    messages = tuple(Message(role=roles[i % 2], content=text) for i, text in enumerate(texts))  # type: ignore[arg-type]
    fields.setdefault("max_tokens", 12)
    return Request(messages=messages, **fields)


@dataclass
class Answer:
    text: str = ""
    progress: list[Progress] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finished: Finished = field(default_factory=lambda: Finished(id="", reason="error"))

    @property
    def cached(self) -> int:
        return self.finished.usage.cached_tokens


async def answer(
    session: Session,
    request: Request,
    *,
    at: Callable[[Event], bool] | None = None,
    cancel: CancelToken | None = None,
) -> Answer:
    """The whole reply; cancelled at the first event for which `at` holds."""
    cancel = cancel or CancelToken()
    got = Answer()
    async for event in session.stream(request, cancel):
        match event:
            case Progress():
                got.progress.append(event)
            case Text():
                got.text += event.text
                got.pieces.append(event.text)
                got.logprobs += event.logprobs or []
            case Finished():
                got.finished = event
        if at is not None and at(event):
            cancel.cancel()
    return got
