"""One backend, opened as `exo run` opens it, and ways to ask and to stop it. Knows no pytest.

The session lives on an event loop in a thread of its own from the first test to the last, as in a server:
what one test leaves behind the next one meets.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, TypeVar

from exocli.backend import Capabilities
from exocli.cancel import CancelToken
from exocli.cli import context
from exocli.errors import ModelNotFound
from exocli.types import Event, Finished, Message, Request, Sampling, Started, Text

T = TypeVar("T")

WITHIN_S = 300.0
"""For one question, loading included."""


@dataclass(frozen=True)
class Reply:
    """Every event of one request, in order."""

    events: tuple[Event, ...]

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished), f"the last event is {last}, not Finished"
        return last

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Text))

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


def request(text: str, *, max_tokens: int | None = 16, **more: Any) -> Request:
    """A greedy chat request."""
    more.setdefault("sampling", Sampling(temperature=0.0))
    return Request(messages=(Message(role="user", content=text),), max_tokens=max_tokens, **more)


def long_text(words: int) -> str:
    """A prompt of about this many words, all different."""
    return " ".join(f"number{n}" for n in range(words)) + " Which number came first?"


class Kit:
    """Raises ExoError if the backend or the model cannot be had."""

    def __init__(self, backend: str, model: str | None, pairs: Sequence[str]) -> None:
        self.choice = context.choose(model, backend, pairs)

        def pull(*_: object) -> None:
            raise ModelNotFound(f'{self.choice.ref} is not on this machine: run "exo models pull" first.')

        self._path = context.ensure_model(self.choice, pull, None)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="exo-kit", daemon=True)
        self._thread.start()
        self.session = self.run(self._open())
        self.run(self.session.load())

    async def _open(self) -> Any:
        return self.choice.session(self._path)

    @property
    def capabilities(self) -> Capabilities:
        """The opened engine's."""
        found: Capabilities = self.session.capabilities
        return found

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(WITHIN_S)
        except FutureTimeout:
            future.cancel()
            raise AssertionError(f"no end within {WITHIN_S:.0f} s") from None

    def close(self) -> None:
        self.run(self.session.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --------------------------------------------------------------------------------------- asking

    def ask(self, what: Request | str, *, cancel_at: Callable[[Event], bool] | None = None) -> Reply:
        """The whole reply; with `cancel_at`, cancelled at the first event for which that is true."""
        return self.run(self.asking(what, cancel_at=cancel_at))

    def ask_all(self, *requests: Request) -> list[Reply]:
        """Several at once."""

        async def all_of_them() -> list[Reply]:
            return list(await asyncio.gather(*map(self.asking, requests)))

        return self.run(all_of_them())

    async def asking(self, what: Request | str, *, cancel_at: Callable[[Event], bool] | None = None) -> Reply:
        asked = request(what) if isinstance(what, str) else what
        cancel = CancelToken()
        events = []
        async for event in self.session.stream(asked, cancel):
            events.append(event)
            if cancel_at is not None and cancel_at(event):
                cancel.cancel("the kit")
        return checked(asked, Reply(tuple(events)))

    def leave(self, what: Request) -> None:
        """Ask, and go away at the first event after Started."""

        async def leaving() -> None:
            stream = self.session.stream(what, CancelToken())
            async for event in stream:
                if not isinstance(event, Started):
                    break
            await stream.aclose()
            while what.id in self.session.flights:  # until the engine has left it, too
                await asyncio.sleep(0.01)

        self.run(leaving())


def checked(asked: Request, reply: Reply) -> Reply:
    """What holds for every reply, however it ended."""
    assert isinstance(reply.events[0], Started), "the first event is Started"
    assert len(reply.of(Finished)) == 1 and isinstance(reply.events[-1], Finished), "one Finished, the last"
    assert {event.id for event in reply.events} == {asked.id}, "events of this request alone"
    finished = reply.finished
    assert (finished.cancel is not None) == (finished.reason == "cancelled"), "a receipt if cancelled"
    assert (finished.error is not None) == (finished.reason == "error"), "an error if failed"
    if asked.max_tokens is not None:
        assert finished.usage.completion_tokens <= asked.max_tokens, "no more than max_tokens"
    return reply
