"""How the ranks stay in step: one small header before each step's data.

The first rank leads: what it has received is what every rank applies. The header travels the way the
data does, so stages that overlap keep overlapping. Knows no MLX and no requests: a `Carrier` moves the
numbers, and a step is summed up by what it did.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from exocli import EngineFailed

HEADER = 3
"""[number of the last command to apply, step number, digest of the steps before]"""


class Carrier(Protocol):
    """Moves numbers between ranks: `Link` along a pipeline, `Collective` under tensor parallelism."""

    rank: int
    size: int
    sends_tokens: bool
    """This rank samples, and nobody waits for another when it sends what it has sampled."""
    in_turn: bool
    """Numbers come after all the work that was begun before them, on every rank."""

    def pass_numbers(self, numbers: Sequence[int] | None, count: int) -> Callable[[], list[int]]:
        """The first rank's numbers, on every rank; the others give None. Call the answer to wait for them."""

    def share_tokens(self, ids: Any) -> Any:
        """The sampling rank's numbers (token ids and marks), on every rank."""


@dataclass(frozen=True, slots=True)
class _Header:
    """One on its way, and what it must say here as well."""

    numbers: Callable[[], list[int]]
    step: int
    digest: int


class Agreement:
    """Which commands a step applies, the same on every rank, and proof that the step before was the
    same everywhere. One call of `agree` and one of `record` a step."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._digest = 0
        self._early: _Header | None = None
        self.step = 0
        """The number of the step now being made, from 1."""

    def agree(self, received: int, *, ahead: bool = False) -> int:
        """The number of the last command that this step applies.

        The leader answers at once with what it has received and sends the header on; the others wait
        for it. `ahead`, the same on every rank: this step computes while the next is prepared. A header that
        comes in turn would wait until it is computed, so the next step's goes before it: what the leader
        receives meanwhile is then applied one step later. Raises EngineFailed where this rank's last step
        was not the leader's.
        """
        self.step += 1
        header = self._early or self._send(received)
        self._early = self._send(received) if ahead and self._carrier.in_turn else None
        upto, step, digest = header.numbers()
        if (step, digest) != (header.step, header.digest):
            raise EngineFailed(
                f"The ranks are out of step: rank {self._carrier.rank} is at step {header.step} "
                f"({header.digest:08x}), rank 0 at {step} ({digest:08x}). The ring starts afresh.",
                rank=self._carrier.rank,
                step=self.step,
            )
        return upto

    def _send(self, received: int) -> _Header:
        mine = [received, self.step, self._digest] if self._carrier.rank == 0 else None
        return _Header(self._carrier.pass_numbers(mine, HEADER), self.step, self._digest)

    def record(self, rows: Iterable[Sequence[object]]) -> None:
        """Sum up the step: `rows` is what it did, one entry a sequence (its number, tokens, progress);
        the same objects on every rank, or the next `agree` fails."""
        # Of all steps so far, since a header that was sent early leaves one out.
        self._digest = zlib.crc32(repr([tuple(row) for row in rows]).encode(), self._digest)
