"""Who may run now: so many requests at once as there are places and memory; owners take turns, each one's
first come first.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with every request of cost one: an owner with many
waiting gets no more than its share, and one owner alone is served in order of arrival. Whoever is next
waits for room, and nobody overtakes: else small requests would keep a large one waiting for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exocli.runtime.flight import Flight, unless_cancelled
from exocli.types import Status

MEMORY = "waiting for memory"


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    tag: int
    flight: Flight
    turn: asyncio.Future[None]


class Turns:
    """`limit`: how many may run at once. `fits`: could requests that reserve so many tokens each run side
    by side? Both are asked at every turn: they are known better once the engine is open."""

    def __init__(
        self, limit: Callable[[], int], fits: Callable[[Sequence[int]], bool] = lambda needs: True
    ) -> None:
        self._limit = limit
        self._fits = fits
        self._running: list[Flight] = []
        self._waiting: list[_Waiter] = []
        self._served = 0
        """The tag of the last one that was let in."""
        self._last: dict[str, int] = {}
        """The latest tag of each owner who waits, where it is ahead of what was served."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def reserved(self) -> list[int]:
        """Tokens that each of the running ones reserves."""
        return [flight.reserves for flight in self._running]

    def _room_for(self, flight: Flight) -> bool:
        """One that is alone always has room: what can never run was refused before it came here."""
        if not self._running:
            return True
        needs = [*self.reserved, flight.reserves]
        return len(needs) <= self._limit() and self._fits(needs)

    async def acquire(self, flight: Flight) -> bool | None:
        """Wait for a slot, and for the room of `flight.reserves` tokens. → whether it waited; None =
        cancelled meanwhile."""
        if flight.cancel.cancelled:
            return None
        if not self._waiting and self._room_for(flight):
            self._running.append(flight)
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
            self.release(flight)  # it was our turn in the same moment: pass it on
        else:
            with contextlib.suppress(ValueError):  # a slot that became free has passed it over already
                self._waiting.remove(waiter)
            self._admit()  # whoever stood behind it may need less
        return None

    def release(self, flight: Flight) -> None:
        """It runs no more."""
        self._running.remove(flight)
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            if not waiter.turn.done():
                if not self._room_for(waiter.flight):
                    break
                self._running.append(waiter.flight)
                waiter.turn.set_result(None)
            self._served = waiter.tag
            self._waiting.pop(0)
        # A tag that was served says nothing more; without this the owners of years would stay.
        late = {owner: tag for owner, tag in self._last.items() if tag > self._served}
        self._last = late if self._waiting else {}
        self._tell_positions()

    def _tell_positions(self, since: int = 0) -> None:
        for position, waiter in enumerate(self._waiting[since:], start=since + 1):
            text = MEMORY if position == 1 and self.running < self._limit() else None
            waiter.flight.put(Status(id=waiter.flight.id, phase="queued", position=position, text=text))
