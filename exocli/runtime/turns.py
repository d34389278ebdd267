"""Who may run now: at most so many requests at once; owners take turns, each one's first come first.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with every request of cost one: an owner with many
waiting gets no more than its share, and one owner alone is served in order of arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from exocli.runtime.flight import Flight, unless_cancelled
from exocli.types import Status


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    tag: int
    flight: Flight
    turn: asyncio.Future[None]


class Turns:
    """`limit` is asked at every turn: it is known better once the engine is open."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self.running = 0
        self._waiting: list[_Waiter] = []
        self._served = 0
        """The tag of the last one that was let in."""
        self._last: dict[str, int] = {}
        """The latest tag of each owner that waits."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self, flight: Flight) -> bool | None:
        """Wait for a slot. → whether it waited; None = cancelled meanwhile."""
        if flight.cancel.cancelled:
            return None
        if self.running < self._limit() and not self._waiting:
            self.running += 1
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tag = self._last[flight.owner] = max(self._served, self._last.get(flight.owner, 0)) + 1
        waiter = _Waiter(tag, flight, turn)
        insort(self._waiting, waiter, key=lambda one: one.tag)
        self._tell_positions(self._waiting.index(waiter))

        async def wait() -> bool:
            await turn
            return True

        if await unless_cancelled(wait(), flight.cancel):
            return True
        if turn.done() and not turn.cancelled():
            self.release()  # it was our turn in the same moment: pass it on
        else:
            with contextlib.suppress(ValueError):  # a slot that became free has passed it over already
                self._waiting.remove(waiter)
            self._tell_positions()
        return None

    def release(self) -> None:
        self.running -= 1
        while self._waiting and self.running < self._limit():
            waiter = self._waiting.pop(0)
            self._served = waiter.tag
            if not waiter.turn.done():
                self.running += 1
                waiter.turn.set_result(None)
        if not self._waiting:
            self._last.clear()
        self._tell_positions()

    def _tell_positions(self, since: int = 0) -> None:
        for position, waiter in enumerate(self._waiting[since:], start=since + 1):
            waiter.flight.put(Status(id=waiter.flight.id, phase="queued", position=position))
