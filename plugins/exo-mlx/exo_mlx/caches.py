"""The KV caches that a model's requests get, of whatever kind, and what can be done with each.

Knows mlx-lm's cache classes and what BatchGenerator asks of them; knows no requests and no ranks.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import mlx.core as mx
from exocli import UsageError
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

from exo_mlx.kv_budget import Footprint

Cache = Any


class QuantizedKV(CacheList):  # type: ignore[misc]
    """Keys and values in `bits` bits, in groups of `group_size` along the head: mlx-lm's quantized
    attention reads it (base.py goes by the attribute `bits`), and unlike mlx-lm's QuantizedKVCache it can
    be batched.

    A quantized array is three (packed words, scales, biases), each with the tokens along the same axis:
    three KVCaches hold them, and what a batch asks for is asked of each.
    """

    def __init__(self, bits: int, group_size: int, parts: tuple[Cache, ...] | None = None) -> None:
        super().__init__(*(parts or (KVCache(), KVCache(), KVCache())))
        self.bits = bits
        self.group_size = group_size

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[tuple[mx.array, ...], ...]:
        """(batch, heads, tokens, width) each → all keys and all values, each as (words, scales, biases)."""
        new = (mx.quantize(array, group_size=self.group_size, bits=self.bits) for array in (keys, values))
        held = [part.update_and_fetch(k, v) for part, k, v in zip(self.caches, *new, strict=True)]
        return tuple(k for k, _ in held), tuple(v for _, v in held)

    @property
    def offset(self) -> Any:
        return self.caches[0].offset

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        return self.caches[0].make_mask(*args, **kwargs)

    @classmethod
    def merge(cls, caches: list[QuantizedKV]) -> QuantizedKV:
        first = caches[0]
        same = zip(*(cache.caches for cache in caches), strict=True)
        return cls(first.bits, first.group_size, tuple(KVCache.merge(list(parts)) for parts in same))

    def extract(self, idx: int) -> QuantizedKV:
        parts = tuple(part.extract(idx) for part in self.caches)
        return QuantizedKV(self.bits, self.group_size, parts)


class _Alone:
    """What BatchGenerator asks of a cache, for a kind that mlx-lm cannot batch: a batch of one."""

    @classmethod
    def merge(cls, caches: list[Cache]) -> Cache:
        (cache,) = caches
        return cache

    def extract(self, index: int) -> Cache:
        return copy.deepcopy(self)

    def filter(self, keep: list[int]) -> None:
        """Nobody is left out: a batch of one that becomes empty drops its caches."""


@functools.cache
def _alone(kind: Any) -> Any:
    return type(f"{kind.__name__}Alone", (_Alone, kind), {})


class Caches:
    """Makes the caches of one model, whose keys and values have `bits` bits if that is given.

    `batched`: several requests can share a step; else they go one at a time. `trims_below`: a cache that
    holds fewer tokens can be cut back, one with more cannot; None = always, 0 = never. `footprint`: what a
    request's caches take. `untouched`: layers whose caches `bits` does not make smaller. Raises UsageError
    where `bits` cannot be.

    On several ranks every one makes its own, at the same moment: the model runs once here.
    """

    def __init__(self, model: Any, name: str, bits: int | None = None, group_size: int = 64) -> None:
        self._model = model
        self._bits = bits
        self._group_size = group_size
        empty = make_prompt_cache(model)
        self.batched = all(_can_batch(cache) for cache in empty)
        limits = [limit for cache in empty if (limit := _trims_below(cache)) is not None]
        self.trims_below = min(limits, default=None)
        self.untouched = sum(type(cache) is not KVCache for cache in empty)
        caches = self.make()
        try:
            logits = model(mx.array([[0]]), cache=caches)
            if bits is not None:  # else the shapes are enough
                mx.eval(logits)
        except Exception as error:  # whatever an attention raises that does not go through mlx-lm's own
            if bits is None:
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise UsageError(
                f"{name} cannot run with kv_bits={bits} and kv_group_size={group_size}: {reason}."
            ) from error
        self.footprint = footprint(caches)

    @property
    def notes(self) -> list[str]:
        """What a person should know of them."""
        notes = []
        if not self.batched:
            notes.append("The caches of this architecture cannot be batched: requests run one at a time.")
        if self._bits is not None and self.untouched:
            count = f"{self.untouched} layers"
            notes.append(f"kv_bits leaves {count} as they are: their caches are bounded already.")
        return notes

    def make(self) -> list[Cache]:
        """Empty caches for one request."""
        caches: list[Cache] = make_prompt_cache(self._model)
        if self._bits is not None:
            bits, size = self._bits, self._group_size
            caches = [QuantizedKV(bits, size) if type(cache) is KVCache else cache for cache in caches]
        if not self.batched:
            for cache in caches:
                kind: Any = type(cache)
                cache.__class__ = _alone(kind)
        return caches


def trimmable(caches: list[Cache]) -> bool:
    """May these caches, as they are now, be cut back to fewer tokens?"""
    return all(_can_go_back(cache) for cache in caches)


def _can_go_back(cache: Cache) -> bool:
    parts = getattr(cache, "caches", None)
    if parts is not None:
        return all(_can_go_back(part) for part in parts)
    # A chunked cache says yes even where the tokens before its start are gone.
    return bool(cache.is_trimmable()) and not getattr(cache, "start_position", 0)


def _can_batch(cache: Cache) -> bool:
    parts = getattr(cache, "caches", None)
    return hasattr(cache, "merge") and all(_can_batch(part) for part in parts or ())


def _trims_below(cache: Cache) -> int | None:
    parts = getattr(cache, "caches", None)
    if parts is not None:
        return min((n for part in parts if (n := _trims_below(part)) is not None), default=None)
    for bound in ("max_size", "chunk_size"):
        if hasattr(cache, bound):
            return int(getattr(cache, bound))
    return None if cache.is_trimmable() else 0


def footprint(caches: list[Cache]) -> Footprint:
    """What caches that hold one token will take when they hold many. Goes by their shapes alone."""
    total = Footprint()
    for cache in caches:
        total += _footprint(cache)
    return total


def _footprint(cache: Cache) -> Footprint:
    parts = getattr(cache, "caches", None)
    if parts is not None:
        return footprint(list(parts))
    if getattr(cache, "keys", None) is None:
        return Footprint(fixed=int(cache.nbytes))
    # (batch, heads, tokens, width); some models have a width of 0
    token = sum(array.nbytes // array.shape[2] for array in (cache.keys, cache.values) if array.size)
    bound = _trims_below(cache)
    return Footprint(token=token) if bound is None else Footprint(fixed=token * bound)
