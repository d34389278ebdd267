"""What `-o` and `[backends.mlx]` accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`cancel_latency_ms`: how long a cancel may wait for the prefill chunk under way; sizes the chunks.
    `chunk`: a fixed prefill chunk in tokens instead. `cpu_dtype`: float32 is what the BLAS can work on.
    `blas_threads`: None = chosen by the machine. `context`: a smaller limit than the model's own, in
    tokens. `cache_entries`, `cache_tokens`: bounds of the prefix cache, lower where memory is short.
    `kv_bits`: keys and values in 8 or 4 bits, in groups of `kv_group_size` that share a scale. `kv_budget`:
    tokens that all running requests may reserve (prompt and reply), instead of what memory holds.
    `chat_template`: a file with the template (Jinja) to use instead of the model's own. `force`: load even
    if it seems not to fit."""

    cancel_latency_ms: int = 300
    chunk: int | None = None
    cpu_dtype: Literal["auto", "float32", "keep"] = "auto"
    blas_threads: int | None = None
    context: int | None = None
    cache_entries: int = 10
    cache_tokens: int = 65536
    kv_bits: Literal[8, 4] | None = None
    kv_group_size: Literal[64, 32, 128] = 64
    kv_budget: int | None = None
    chat_template: str | None = None
    force: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"The option {name} must be at least {least}, not {value}.")


_LEAST = {
    **dict.fromkeys(("cancel_latency_ms", "chunk", "blas_threads", "context", "kv_budget"), 1),
    **dict.fromkeys(("cache_entries", "cache_tokens"), 0),
}

MOST_DRAFTED = 31
"""A pass then has the size of the smallest prefill chunk, so that a cancel waits no longer for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions(Options):
    """What the `mlx` backend takes beyond what a rank of a ring does. `speculate`: "lookup" drafts tokens
    from where the text's end has occurred before. `draft`: a smaller model of the same vocabulary drafts
    them instead, named as `-m` names one. `speculate_tokens`: at most so many at a time. `adapter`: a folder
    as mlx_lm.lora writes it, whose LoRA layers go over the model."""

    speculate: Literal["off", "lookup"] = "off"
    draft: str | None = None
    speculate_tokens: int | None = None
    adapter: str | None = None

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.speculate != "off" and self.draft is not None:
            raise ValueError("Give either speculate or draft: one of them drafts.")
        if self.speculate_tokens is not None and not 1 <= self.speculate_tokens <= MOST_DRAFTED:
            raise ValueError(
                f"The option speculate_tokens must be from 1 to {MOST_DRAFTED}, not {self.speculate_tokens}."
            )
