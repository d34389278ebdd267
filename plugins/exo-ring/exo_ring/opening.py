"""Opens one rank in a worker: what must happen before mlx is imported, then the import."""

from __future__ import annotations

import os
import sys

from exocli import OpenContext, StepEngine


def open_engine(context: OpenContext) -> StepEngine:
    """Raises what `formation.form` and the loader raise."""
    prepare(context)
    from exo_ring.engine import RingEngine

    return RingEngine(context)


def prepare(context: OpenContext) -> None:
    """Open a fast BLAS, with as many threads as this machine's ranks leave each other."""
    from exo_mlx import blas

    count = threads(context.options.blas_threads, context.data["local_ranks"])
    context.log(f"blas: {blas.prepare(context.cache_dir, count)}")


def threads(asked: int | None, local_ranks: int) -> int | None:
    """BLAS threads of a rank: those of ranks that share a machine must not outnumber its cores. None =
    as for a rank that is alone."""
    if asked is not None or local_ranks == 1:
        return asked
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // local_ranks)
