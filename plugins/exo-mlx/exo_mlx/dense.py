"""Quantized modules as dense float32 ones, for the CPU device, where only float32 reaches the BLAS.

Affine weights of 2, 4 and 8 bits are unpacked by numpy, several times as fast as MLX's own CPU kernel,
which does the rest; the values are the same. Knows mlx modules, no files.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.mla import MultiLinear, QuantizedMultiLinear
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

_CHUNK = 1 << 18
"""Weights at a time, so that they stay in the CPU's cache."""


def to_dense(module: Any) -> Any | None:
    """A dense float32 module with the weights of a quantized one, evaluated; None if its kind is unknown."""
    bias = "bias" in module
    rows, columns = int(module.weight.shape[-2]), int(module.weight.shape[-1]) * 32 // module.bits
    if isinstance(module, nn.QuantizedLinear):
        dense: Any = nn.Linear(columns, rows, bias=bias)
    elif isinstance(module, nn.QuantizedEmbedding):
        dense = nn.Embedding(rows, columns)
    elif isinstance(module, QuantizedSwitchLinear):
        dense = SwitchLinear(columns, rows, int(module.weight.shape[0]), bias=bias)
    elif isinstance(module, QuantizedMultiLinear):
        dense = MultiLinear(columns, rows, int(module.weight.shape[0]))
    else:
        return None
    dense.weight = _weights(module)
    if bias:
        dense.bias = module.bias
    mx.eval(dense.weight)
    return dense


def _weights(module: Any) -> mx.array:
    if module.mode == "affine" and 8 % module.bits == 0:
        return _unpack(module)
    affine = module.mode == "affine"
    return mx.dequantize(
        module.weight,
        module.scales.astype(mx.float32) if affine else module.scales,
        module.biases.astype(mx.float32) if affine else None,
        module.group_size,
        module.bits,
        module.mode,
        module.get("global_scale"),
        dtype=mx.float32,
    )


def _unpack(module: Any) -> mx.array:
    """Unpack straight into the memory of the new array: touching fresh memory is what costs here."""
    bits, group = module.bits, module.group_size
    packed = np.array(module.weight, copy=False).view(np.uint8).reshape(-1, group * bits // 8)
    scales = np.array(module.scales.astype(mx.float32), copy=False).reshape(-1, 1)
    biases = np.array(module.biases.astype(mx.float32), copy=False).reshape(-1, 1)
    weight = mx.zeros((len(packed), group), dtype=mx.float32)
    mx.eval(weight)
    out = np.array(weight, copy=False)  # a view: MLX documents that writing to it changes the array
    each, mask = 8 // bits, np.uint8((1 << bits) - 1)
    for start in range(0, len(packed), _CHUNK // group):
        part = slice(start, start + _CHUNK // group)
        values = out[part]
        for place in range(each):
            values[:, place::each] = (packed[part] >> np.uint8(place * bits)) & mask
        values *= scales[part]
        values += biases[part]
    return weight.reshape(*module.weight.shape[:-1], -1)
