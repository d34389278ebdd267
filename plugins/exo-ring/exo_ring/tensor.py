"""Tensor parallelism: every rank holds a part of every layer, and they add up their results.

mlx-lm does the sharding; this says when it can, and moves headers and token ids the way that the
model's own sums go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

Array = Any


class Collective:
    """Rank 0's numbers and tokens for all, as sums in which the others add nothing. On the stream of
    the generation, like the model's own sums: the two share the same bytes on the wire."""

    def __init__(self, group: Any) -> None:
        self.rank, self.size = group.rank(), group.size()
        self._group = group

    def pass_numbers(self, numbers: Sequence[int] | None, count: int) -> list[int]:
        mine = mx.array(list(numbers) if numbers is not None else [0] * count, dtype=mx.int64)
        shared: list[int] = mx.distributed.all_sum(mine, group=self._group).tolist()  # type: ignore[assignment]
        return shared

    def share_tokens(self, ids: Array) -> Array:
        mine = ids.astype(mx.uint32) if self.rank == 0 else mx.zeros(ids.shape, dtype=mx.uint32)
        shared = mx.distributed.all_sum(mine, group=self._group)
        mx.async_eval(shared)  # type: ignore[no-untyped-call]
        return shared
