"""How the ranks stay in step: one small header before each step's data.

The first rank leads: what it has received is what every rank applies. The header travels the way the
data does, so stages that overlap keep overlapping. Knows no MLX and no requests: a `Carrier` moves the
numbers, and a step is summed up by what it did.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from exocli import EngineFailed

HEADER = 3
"""[number of the last command to apply, step number, digest of the step before]"""


class Carrier(Protocol):
    """Moves numbers between ranks: `Link` along a pipeline, `Collective` under tensor parallelism."""

    rank: int
    size: int
    sends_tokens: bool
    """This rank samples, and nobody waits for another when it sends what it has sampled."""

    def pass_numbers(self, numbers: Sequence[int] | None, count: int) -> list[int]:
        """The first rank's numbers, on every rank; the others give None."""

    def share_tokens(self, ids: Any) -> Any:
        """The sampling rank's numbers (token ids and marks), on every rank."""


class Agreement:
    """Which commands a step applies, the same on every rank, and proof that the step before was the
    same everywhere. One call of `agree` and one of `record` a step."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._digest = 0
        self.step = 0
        """The number of the step now being made, from 1."""

    def agree(self, received: int) -> int:
        """The number of the last command that this step applies.

        The leader answers at once with what it has received and sends the header on; the others wait
        for it. Raises EngineFailed where this rank's last step was not the leader's.
        """
        self.step += 1
        lead = self._carrier.rank == 0
        mine = [received, self.step, self._digest]
        upto, step, digest = self._carrier.pass_numbers(mine if lead else None, HEADER)
        if (step, digest) != (self.step, self._digest):
            raise EngineFailed(
                f"The ranks are out of step: rank {self._carrier.rank} is at step {self.step} "
                f"({self._digest:08x}), rank 0 at {step} ({digest:08x}). The ring starts afresh.",
                rank=self._carrier.rank,
                step=self.step,
            )
        return upto

    def record(self, rows: Iterable[Sequence[object]]) -> None:
        """Sum up the step: `rows` is what it did, one entry a sequence (its number, tokens, progress);
        the same objects on every rank, or the next `agree` fails."""
        self._digest = zlib.crc32(repr([tuple(row) for row in rows]).encode())
