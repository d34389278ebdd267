"""What `-o` and `[backends.mlx]` accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`cancel_latency_ms`: how long a cancel may wait for the prefill chunk under way; sizes the chunks.
    `chunk`: a fixed prefill chunk in tokens instead. `cpu_dtype`: float32 is what the BLAS can work on.
    `blas_threads`: None = chosen by the machine. `context`: a smaller limit than the model's own, in
    tokens. `cache_entries`, `cache_tokens`: bounds of the prefix cache. `force`: load even if it seems
    not to fit."""

    cancel_latency_ms: int = 300
    chunk: int | None = None
    cpu_dtype: Literal["auto", "float32", "keep"] = "auto"
    blas_threads: int | None = None
    context: int | None = None
    cache_entries: int = 10
    cache_tokens: int = 65536
    force: bool = False
