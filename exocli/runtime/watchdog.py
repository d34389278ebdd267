"""The clocks over the ranks: who owes a sign of life, and for how long there was none.

Told of lines and of time; says what has stalled, and does nothing about it (group.py does).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sized

from exocli.errors import Stalled
from exocli.runtime.live import Live

CANCEL_DEADLINE = 2.0
"""Seconds, at least, that a cancel may stay unanswered before anybody is told."""
BEAT_LIMIT = 3.0
"""Seconds without a heartbeat after which one of several ranks counts as stalled."""


class Watchdog:
    """`live`: the group's requests, `prepares`: those that rank 0 prepares; both are only read. `name(rank)`
    is a rank for a person, `usual()` the seconds that a step usually takes; `stall_timeout` None = a limit of
    its own, 0 = off."""

    def __init__(
        self,
        backend: str,
        size: int,
        live: Mapping[str, Live],
        *,
        name: Callable[[int], str],
        usual: Callable[[], float],
        prepares: Sized = (),
        stall_timeout: float | None = None,
    ) -> None:
        self._backend = backend
        self._size = size
        self._live = live
        self._prepares = prepares
        self._name = name
        self._usual = usual
        self._stall_timeout = stall_timeout
        self._heard: dict[int, float] = {}
        self._stepped = 0.0

    # ------------------------------------------------------------------------------ what it is told

    def heard(self, rank: int, *, step: bool = False) -> None:
        """A line came from it; `step`: it has finished one."""
        self._heard[rank] = time.monotonic()
        if step:
            self._stepped = self._heard[rank]

    def begin(self) -> None:
        """A request is about to be prepared or submitted: whoever had none was silent by right until now."""
        now = time.monotonic()
        if not self._live:
            self._stepped = now
        for rank in set(range(self._size)) - self._pending():
            self._heard[rank] = now

    def restart(self, now: float) -> None:
        """We stood still ourselves (Ctrl-Z, a sleeping laptop): every clock starts anew."""
        self._heard = dict.fromkeys(range(self._size), now)
        self._stepped = now
        for live in self._live.values():
            live.cancel_sent = now if live.cancel_sent else None

    # ------------------------------------------------------------------------------ what it answers

    @property
    def cancel_deadline(self) -> float:
        """Seconds after which an unanswered cancel is told; at twice that the workers are ended."""
        return max(CANCEL_DEADLINE, 5 * self._usual())

    def silent_s(self, rank: int) -> float:
        """Seconds since its last sign of life; 0 for one that owes none."""
        return round(time.monotonic() - self._heard[rank], 1) if rank in self._pending() else 0.0

    def missing(self, live: Live) -> str:
        """Who has not left a request yet, for a person."""
        late = [rank for rank in range(self._size) if rank not in live.left]
        return self._name(late[0] if late else 0)

    def stalled(self, now: float) -> Stalled | None:
        """What is too late now. One rank alone is never too slow, only deaf to a cancel."""
        for live in self._live.values():
            if live.cancel_sent and now - live.cancel_sent > 2 * self.cancel_deadline:
                return Stalled(
                    f"{self.missing(live)} of {self._backend} did not answer a cancel; it was ended."
                )
        pending = self._pending()
        if self._size == 1 or not pending or self._stall_timeout == 0:
            return None
        silent = min(pending, key=lambda rank: self._heard[rank])
        if now - self._heard[silent] > BEAT_LIMIT:
            return Stalled(f"{self._name(silent)} of {self._backend} gives no sign of life.", rank=silent)
        limit = self._stall_timeout or max(60.0, 20 * self._usual())
        if self._live and now - self._stepped > limit:
            return Stalled(f"No rank of {self._backend} has finished a step for {limit:.0f} s.")
        return None

    def _pending(self) -> set[int]:
        """The ranks that have not left every request, and rank 0 while it prepares one: those owe a sign of
        life."""
        found = {rank for live in self._live.values() for rank in range(self._size) if rank not in live.left}
        return found | {0} if self._prepares else found
