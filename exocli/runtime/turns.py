"""Who may run now: at most so many requests at once, first come, first served."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from exocli.runtime.flight import Flight, unless_cancelled
from exocli.types import Status


class Turns:
    """`limit` is asked at every turn: it is known better once the engine is open."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self.running = 0
        self._waiting: deque[tuple[Flight, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self, flight: Flight) -> bool | None:
        """Wait for a slot, first come first served. → whether it waited; None = cancelled meanwhile."""
        if flight.cancel.cancelled:
            return None
        if self.running < self._limit() and not self._waiting:
            self.running += 1
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((flight, turn))
        flight.put(Status(id=flight.id, phase="queued", position=len(self._waiting)))

        async def wait() -> bool:
            await turn
            return True

        if await unless_cancelled(wait(), flight.cancel):
            return True
        if turn.done() and not turn.cancelled():
            self.release()  # it was our turn in the same moment: pass it on
        else:
            with contextlib.suppress(ValueError):  # a slot that became free has passed it over already
                self._waiting.remove((flight, turn))
            self._tell_positions()
        return None

    def release(self) -> None:
        self.running -= 1
        while self._waiting and self.running < self._limit():
            _, turn = self._waiting.popleft()
            if not turn.done():
                self.running += 1
                turn.set_result(None)
        self._tell_positions()

    def _tell_positions(self) -> None:
        for position, (flight, _) in enumerate(self._waiting, start=1):
            flight.put(Status(id=flight.id, phase="queued", position=position))
