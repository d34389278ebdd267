"""Tensor parallelism: every rank holds a part of every layer, and they add up their results.

mlx-lm does the sharding (plan.py says when it can); this moves headers and token ids the way that the
model's own sums go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from exo_mlx import dense

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


def shard(model: Any, group: Any, cpu_dtype: str) -> Any:
    """`model` with this rank's part of every layer, its weights still to be evaluated.

    mlx-lm shards quantized layers as they are. Where the loader would write them out in float32 (the CPU
    device) that has to come first: it does not know the sharded kinds.
    """
    if mx.default_device() == mx.cpu and cpu_dtype != "keep":
        for name, module in tree_flatten(model.leaf_modules(), is_leaf=lambda m: hasattr(m, "parameters")):
            if "scales" in module and (new := dense.to_dense(module)) is not None:
                model.update_modules(tree_unflatten([(name, new)]))
    model.shard(group)
    return model
