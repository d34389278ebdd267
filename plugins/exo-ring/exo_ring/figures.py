"""What agreement costs, for `exo bench -b ring`: one ring that agrees in every other stretch of a reply.

Both variants are measured in the same processes, some steps apart, so that neither a busy machine nor where
the weights happen to lie falls on one of them alone. Commands wait for a step that agrees.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence

from exocli import Event, Finished, OpenContext, StepEngine, Text

from exo_ring.agreement import Agreement, Carrier

STRETCH = 8
"""Steps of decode in a row, with or without."""
_ORDER = (True, False, False, True)
"""Four stretches make two pairs, the one in the order of the other turned round: what grows with the length
of the text falls on both alike."""

_MEDIANS_ERROR = 1.4826 * 1.2533
"""Standard error of a median of n normal values: this times their median distance from it, over √n."""


class Alternating(Agreement):
    """An Agreement that leaves out every other stretch of a reply while that is all that happens: header
    and digest. The rows of a step are the same on every rank, and so is which steps agree."""

    def __init__(self, carrier: Carrier) -> None:
        super().__init__(carrier)
        self._upto = 0
        self._began = 0.0
        self._decoded = 0
        self._steps: list[list[float]] = []
        self._spent: list[float] = []
        self._pairs: list[tuple[float, float]] = []

    def rest(self) -> None:
        """No reply runs any more, or not that alone: the next step agrees."""
        medians = [statistics.median(each) for each in self._steps if len(each) == STRETCH]
        for number, pair in enumerate(zip(medians[::2], medians[1::2], strict=False)):
            self._pairs.append(pair if _ORDER[2 * number % len(_ORDER)] else pair[::-1])
        self._decoded = 0
        self._steps = []

    @property
    def _agrees(self) -> bool:
        return _ORDER[self._decoded // STRETCH % len(_ORDER)]

    def agree(self, received: int, *, ahead: bool = False) -> int:
        start = time.perf_counter()
        if self._decoded:
            self._steps[-1].append(start - self._began)  # from one boundary to the next
        self._began = start
        if self._agrees:
            self._upto = super().agree(received, ahead=ahead)
        else:
            self.step += 1
        if self._decoded and self._agrees:
            self._spent.append(time.perf_counter() - start)
        return self._upto

    def record(self, rows: Iterable[Sequence[object]]) -> None:
        rows = list(rows)
        if self._agrees:
            super().record(rows)
        if not rows or any(len(row) != 2 for row in rows):  # a part of a prompt among the tokens
            self.rest()
            return
        if self._decoded % STRETCH == 0:
            self._steps.append([])
        self._decoded += 1

    def figures(self) -> dict[str, float]:
        """Over all replies so far: `decode_share`, what agreement adds to a step of decode, as a part of it,
        and its standard error; rank 0's time in it a step; the time of a step without it."""
        self.rest()
        if not self._pairs:
            return {}
        shares = [1 - bare / agreed for agreed, bare in self._pairs]
        share = statistics.median(shares)
        off = statistics.median(abs(each - share) for each in shares)
        return {
            "decode_share": share,
            "decode_share_error": _MEDIANS_ERROR * off / len(shares) ** 0.5,
            "leader_ms": 1000 * statistics.median(self._spent),
            "step_ms": 1000 * statistics.median(bare for _, bare in self._pairs),
            "pairs": len(shares),
        }


def open_engine(context: OpenContext) -> StepEngine:
    """`BackendSpec.figures`: the ring as it is, but that the last text of a reply is its figures."""
    from exo_ring import opening

    ring = opening.join(context)
    from exo_ring.engine import RingEngine

    class Measured(RingEngine):
        _agreement: Alternating

        def make_agreement(self, carrier: Carrier) -> Agreement:
            return Alternating(carrier)

        def agree(self, received: int) -> int:
            if not self._live:
                self._agreement.rest()
            return super().agree(received)

        def step(self) -> Sequence[Event]:
            found: list[Event] = []
            for event in super().step():
                if isinstance(event, Finished):
                    found.append(Text(id=event.id, text=json.dumps({"agreement": self._agreement.figures()})))
                found.append(event)
            return found

    return Measured(context, ring)
