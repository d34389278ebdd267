"""The wire under tensor parallelism: headers and token ids go the way that the model's own sums go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

Array = Any


class Collective:
    """Rank 0's numbers and tokens for all, as sums in which the others add nothing. On the stream of the
    generation, like the model's own sums: the two share the same bytes on the wire."""

    def __init__(self, group: Any) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.sends_tokens = False  # a sum is made by all at once
        self.in_turn = True
        self._group = group

    def pass_numbers(self, numbers: Sequence[int] | None, count: int) -> Callable[[], list[int]]:
        mine = mx.array(list(numbers) if self.rank == 0 and numbers else [0] * count, dtype=mx.int64)
        shared = mx.distributed.all_sum(mine, group=self._group)
        mx.async_eval(shared)  # type: ignore[no-untyped-call]
        return shared.tolist  # type: ignore[return-value]

    def share_tokens(self, ids: Array) -> Array:
        mine = ids.astype(mx.uint32) if self.rank == 0 else mx.zeros(ids.shape, dtype=mx.uint32)
        shared = mx.distributed.all_sum(mine, group=self._group)
        mx.async_eval(shared)  # type: ignore[no-untyped-call]
        return shared
