"""Tensor parallelism: every rank holds a part of every layer, and they add up their results.

mlx-lm does the sharding; plan.py says when it can.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from exo_mlx import dense


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
