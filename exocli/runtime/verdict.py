"""Which rank is to blame when some are lost: one that ended without a word, rather than those that then
lost their peer and said so. Knows what was reported; decides nothing about what happens next.
"""

from __future__ import annotations

from collections.abc import Callable

from exocli.errors import ExoError, Unavailable, WorkerDied


class Verdict:
    """`name(rank)` is a rank for a person, `tail(rank)` the last lines of its stderr."""

    def __init__(self, backend: str, name: Callable[[int], str], tail: Callable[[int], list[str]]) -> None:
        self._backend = backend
        self._name = name
        self._tail = tail
        self._complaints: list[tuple[int, ExoError]] = []
        self._deaths: list[tuple[int, str]] = []
        self._started: set[int] = set()

    def started(self, rank: int) -> None:
        """Its process is ours: it has said hello. What ended before was the command that should start it."""
        self._started.add(rank)

    def complained(self, rank: int, error: ExoError) -> None:
        self._complaints.append((rank, error))

    def ended(self, rank: int, reason: str) -> None:
        """`reason` is a predicate: "was killed", "ended with status 1"."""
        self._deaths.append((rank, reason))

    @property
    def gone(self) -> int:
        """How many ranks have ended."""
        return len(self._deaths)

    def culprit(self) -> ExoError | None:
        """The error that names it; None while nothing was reported."""
        spoke = {rank for rank, _ in self._complaints}
        for rank, reason in self._deaths:
            if rank not in spoke:
                tail = self._tail(rank)
                who = f"{self._name(rank)} of {self._backend}"
                last = f" Its last line: {tail[-1]}" if tail and "SIGKILL" not in reason else ""
                if rank not in self._started:
                    text = f"{who} could not be started: its command {reason}.{last}"
                    return Unavailable(text, rank=rank, stderr=tail or None)
                return WorkerDied(f"{who} {reason}.{last}", rank=rank, stderr=tail or None)
        return self._complaints[0][1] if self._complaints else None
