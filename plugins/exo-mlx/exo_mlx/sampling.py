"""Sampling: mlx-lm's filters, and a draw that depends on (seed, token index) alone.

mlx-lm's own samplers draw from MLX's global random state, so a request's text would depend on what
else is in the batch; a key of our own makes it reproducible there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

_MASK = (1 << 64) - 1


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


class Sampler(Protocol):
    """How one request draws its tokens, as mlx-lm calls it: once for each token, in order.

    `ahead` draws without moving on, for tokens that may not come to be: one for each row of `logprobs`
    (n, vocabulary), the first row being the draw `first` after the next. `advance` moves on.
    """

    def __call__(self, logprobs: mx.array) -> mx.array: ...

    def ahead(self, logprobs: mx.array, first: int = 0) -> mx.array: ...

    def advance(self, count: int) -> None: ...


class Greedy:
    """The likeliest token, whichever draw it is."""

    def __call__(self, logprobs: mx.array) -> mx.array:
        return mx.argmax(logprobs, axis=-1)

    def ahead(self, logprobs: mx.array, first: int = 0) -> mx.array:
        return self(logprobs)

    def advance(self, count: int) -> None:
        pass


GREEDY = Greedy()
"""One for all: mlx-lm draws for a whole batch in one call when its sampler is the same."""


class Seeded:
    """Draws whose randomness is a function of (seed, index of the draw)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._index = 0

    def __call__(self, logprobs: mx.array) -> mx.array:
        token = self._draw(logprobs, self._index)
        self._index += 1
        return token

    def ahead(self, logprobs: mx.array, first: int = 0) -> mx.array:
        begin = self._index + first
        rows = range(logprobs.shape[0])
        return mx.concatenate([self._draw(logprobs[row : row + 1], begin + row) for row in rows])

    def advance(self, count: int) -> None:
        self._index += count

    def _draw(self, logprobs: mx.array, index: int) -> mx.array:
        settings = self._settings
        if settings.top_p < 1.0:
            logprobs = apply_top_p(logprobs, settings.top_p)
        if settings.min_p > 0.0:
            logprobs = apply_min_p(logprobs, settings.min_p)
        if 0 < settings.top_k < logprobs.shape[-1]:
            logprobs = apply_top_k(logprobs, settings.top_k)
        key = mx.random.key(key_for(settings.seed, index))
        return mx.random.categorical(logprobs * (1.0 / settings.temperature), key=key)


COLDEST = 1e-6
"""Below this temperature the likeliest token is certain, and what is divided by it would leave float32."""


def make_sampler(settings: Settings) -> Sampler:
    """logprobs (1, vocabulary) → token ids (1,)."""
    return GREEDY if settings.temperature < COLDEST else Seeded(settings)


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
