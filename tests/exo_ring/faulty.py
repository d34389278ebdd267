"""Ring engines with a fault that a test asks for, opened in real workers in place of the real one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from exocli import Event, OpenContext, Prepared, StepEngine

MARK = "EXO_TEST_FAULT"
"""Names a file; once it is there, the rank whose number it holds fails."""
MISJUDGED = 1.75
"""A presence penalty that fails."""


def open_raising(context: OpenContext) -> StepEngine:
    """Raises in a step."""
    from exo_ring import opening
    from exo_ring.engine import RingEngine

    class Raising(RingEngine):
        def step(self) -> Sequence[Event]:
            mark = Path(os.environ[MARK])
            if mark.exists() and mark.read_text() == str(self._rank):
                mark.unlink()
                raise RuntimeError("a fault made by a test")
            return super().step()

    opening.prepare(context)
    return Raising(context)


def open_misjudging(context: OpenContext) -> StepEngine:
    """The logits processors of a request with MISJUDGED fail in its third draw."""
    from exo_ring import opening

    opening.prepare(context)  # before anything imports mlx
    import mlx.core as mx

    from exo_mlx.guard import Guard
    from exo_ring.engine import RingEngine

    def third() -> Callable[[mx.array, mx.array], mx.array]:
        draws = 0

        def process(tokens: mx.array, logits: mx.array) -> mx.array:
            nonlocal draws
            draws += 1
            if draws == 3:
                raise RuntimeError("a fault made by a test")
            return logits

        return process

    class Misjudging(RingEngine):
        def processors(self, prepared: Prepared) -> Guard | None:
            found = super().processors(prepared)
            if found is None or prepared.settings["penalties"]["presence_penalty"] != MISJUDGED:
                return found
            return Guard([third()], logprobs=False)

    return Misjudging(context)


def open_unlike(context: OpenContext) -> StepEngine:
    """Rank 1 computes with MLX's own BLAS, the others with the fast one."""
    from exo_ring import opening
    from exo_ring.engine import RingEngine

    if context.rank != 1:
        opening.prepare(context)
    return RingEngine(context)


def open_never(context: OpenContext) -> StepEngine:
    """Rank 1 fails while it opens."""
    if context.rank == 1:
        raise MemoryError("a fault made by a test")
    from exo_ring.opening import open_engine

    return open_engine(context)
