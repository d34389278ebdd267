"""Opens the engine in a worker: what must happen before mlx is imported, then the import."""

from __future__ import annotations

from pathlib import Path

from exocli import OpenContext, StepEngine


def open_engine(context: OpenContext) -> StepEngine:
    """Raises ModelBroken, ModelNotFound or OutOfMemory."""
    from exo_mlx import blas

    context.log(f"blas: {blas.prepare(context.cache_dir, context.options.blas_threads)}")
    from exo_mlx import sentence

    if sentence.is_sentence_model(Path(context.model)):
        from exo_mlx.embedding import EmbeddingEngine

        return EmbeddingEngine(context)
    from exo_mlx.engine import MlxEngine

    return MlxEngine(context)
