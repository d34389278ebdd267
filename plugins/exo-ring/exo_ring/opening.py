"""Opens one rank in a worker: what must happen before mlx is imported, the ring, then the heavy imports."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from exocli import OpenContext, StepEngine

if TYPE_CHECKING:
    from exo_ring.formation import Ring


def open_engine(context: OpenContext) -> StepEngine:
    """Raises what `join` and the loader raise."""
    ring = join(context)
    from exo_ring.engine import RingEngine

    return RingEngine(context, ring)


def join(context: OpenContext, *, fast_blas: bool = True) -> Ring:
    """Open a fast BLAS, with as many threads as this machine's ranks leave each other, and form the ring:
    without mlx-lm, whose import takes longer than finding out that a rank is missing. Raises what
    `formation.form` raises."""
    from exo_mlx import blas

    if fast_blas:
        count = threads(context.options.blas_threads, context.data["local_ranks"])
        context.log(f"blas: {blas.prepare(context.cache_dir, count)}")
    from exo_ring import formation

    return formation.form(context)


def threads(asked: int | None, local_ranks: int) -> int | None:
    """BLAS threads of a rank: those of ranks that share a machine must not outnumber its cores. None =
    as for a rank that is alone."""
    if asked is not None or local_ranks == 1:
        return asked
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // local_ranks)
