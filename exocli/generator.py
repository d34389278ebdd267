"""A blocking generator as a StreamEngine, for clients and callback APIs that know no asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from exocli.backend import Capabilities
from exocli.cancel import CancelToken
from exocli.engine import StreamEngine
from exocli.types import Event, Request

GENERATOR_AHEAD = 64
"""Events that a blocking generator may be ahead of whoever reads them."""


class _GeneratorEngine(StreamEngine):
    def __init__(
        self, fn: Callable[[Request, CancelToken], Iterator[Event]], capabilities: Capabilities
    ) -> None:
        self._fn = fn
        self.capabilities = capabilities

    async def stream(self, request: Request, cancel: CancelToken) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()
        left = threading.Event()
        room = threading.Semaphore(GENERATOR_AHEAD)  # or a fast one would bury the cancel in its events

        def put(item: Event | BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def run() -> None:
            try:
                for event in self._fn(request, cancel):
                    if not left.is_set():
                        room.acquire()
                        put(event)
                put(None)
            except BaseException as error:  # it crosses to the caller's thread and is raised there
                put(error)

        threading.Thread(target=run, name=f"exo-generator-{request.id}", daemon=True).start()
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                room.release()
                yield item
        finally:
            cancel.cancel("the reader left")
            left.set()
            room.release()


def from_generator(
    fn: Callable[[Request, CancelToken], Iterator[Event]], capabilities: Capabilities | None = None
) -> StreamEngine:
    """A blocking generator as a StreamEngine; each request runs in a thread of its own.

    The generator should look at `cancel.cancelled` as often as it can and end with a Finished.
    """
    return _GeneratorEngine(fn, capabilities or Capabilities())
