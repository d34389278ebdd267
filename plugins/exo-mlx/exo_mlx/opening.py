"""Opens the engine in a worker: what must happen before mlx is imported, then the import."""

from __future__ import annotations

from exocli import OpenContext, StepEngine


def open_engine(context: OpenContext) -> StepEngine:
    """Raises ModelBroken, ModelNotFound or OutOfMemory."""
    from exo_mlx import blas

    report = blas.prepare(threads=context.options.blas_threads)
    context.log(f"blas: {report}")
    from exo_mlx.engine import MlxEngine

    return MlxEngine(context)
