"""Ring engines with a fault that a test asks for, opened in real workers in place of the real one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from exocli import Event, OpenContext, Prepared, StepEngine

from exo_ring.opening import join, open_engine

MARK = "EXO_TEST_FAULT"
"""Names a file; once it is there, the rank whose number it holds fails."""
MISJUDGED = 1.75
"""A presence penalty that fails."""


def open_raising(context: OpenContext) -> StepEngine:
    """Raises in a step. Rank 1 computes with MLX's own BLAS, the others with the fast one."""
    ring = join(context, fast_blas=context.rank != 1)
    from exo_ring.engine import RingEngine

    class Raising(RingEngine):
        def step(self) -> Sequence[Event]:
            mark = Path(os.environ[MARK])
            if mark.exists() and mark.read_text() == str(self._rank):
                mark.unlink()
                raise RuntimeError("a fault made by a test")
            return super().step()

    return Raising(context, ring)


def open_misjudging(context: OpenContext) -> StepEngine:
    """The logits processors of a request with MISJUDGED fail in its third draw."""
    ring = join(context)  # before anything imports mlx
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

    return Misjudging(context, ring)


def open_never(context: OpenContext) -> StepEngine:
    """Rank 1 fails while it opens."""
    if context.rank == 1:
        raise MemoryError("a fault made by a test")
    return open_engine(context)
