"""Sampling: mlx-lm's filters, and a draw that depends on (seed, token index) alone.

mlx-lm's own samplers draw from MLX's global random state, so a request's text would depend on what
else is in the batch; a key of our own makes it reproducible there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, greedy_sampler

_MASK = (1 << 64) - 1

Sampler = Callable[[mx.array], mx.array]


def key_for(seed: int, index: int) -> int:
    """A 64-bit key for draw `index` of `seed`: the splitmix64 finalizer (Steele, Lea, Flood 2014)."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What decides a request's tokens; travels in the log as plain data. 0 / 1.0 = that filter is off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0


def make_sampler(settings: Settings, vocabulary: int) -> Sampler:
    """logprobs (1, vocabulary) → token ids (1,). Called once for each token, in order."""
    if settings.temperature == 0:
        return greedy_sampler  # type: ignore[no-any-return]
    index = 0

    def sample(logprobs: mx.array) -> mx.array:
        nonlocal index
        if settings.top_p < 1.0:
            logprobs = apply_top_p(logprobs, settings.top_p)
        if settings.min_p > 0.0:
            logprobs = apply_min_p(logprobs, settings.min_p)
        if 0 < settings.top_k < vocabulary:
            logprobs = apply_top_k(logprobs, settings.top_k)
        key = mx.random.key(key_for(settings.seed, index))
        index += 1
        return mx.random.categorical(logprobs * (1.0 / settings.temperature), key=key)

    return sample


def logprob_entry(
    logprobs: mx.array, token: int, top: int, decode: Callable[[list[int]], str]
) -> dict[str, object]:
    """{token, id, logprob, top: [[token, id, logprob]…]} from one row of logprobs (vocabulary,)."""
    alternatives: list[list[object]] = []
    if top > 0:
        # Both are one row: lists of numbers, which MLX's stubs cannot say.
        ids: Any = mx.argpartition(-logprobs, kth=min(top, logprobs.size) - 1)[:top].tolist()
        values: Any = logprobs[mx.array(ids)].tolist()
        pairs = sorted(zip(ids, values, strict=True), key=lambda pair: -pair[1])
        alternatives = [[decode([i]), i, value] for i, value in pairs]
    return {"token": decode([token]), "id": token, "logprob": logprobs[token].item(), "top": alternatives}
