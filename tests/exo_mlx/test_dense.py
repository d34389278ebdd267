"""Unpacking quantized weights gives, bit for bit, what MLX's own dequantize gives."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models.switch_layers import SwitchLinear

from exo_mlx import dense


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64])
def test_dense_weights_are_mlx_s_own(bits: int, group: int) -> None:
    for layer in (nn.Linear(128, 24, bias=True), nn.Embedding(24, 128), SwitchLinear(128, 24, 3, bias=False)):
        packed = layer.to_quantized(group_size=group, bits=bits)
        plain = dense.to_dense(packed)
        assert plain is not None and type(plain) is type(layer)
        expected = mx.dequantize(packed.weight, packed.scales, packed.biases, group, bits)
        assert plain.weight.dtype == mx.float32 and mx.array_equal(plain.weight, expected).item()
        assert ("bias" in plain) == ("bias" in layer)


def test_other_modes_than_affine() -> None:
    packed = nn.Linear(128, 24).to_quantized(group_size=32, bits=4, mode="mxfp4")
    plain = dense.to_dense(packed)
    assert plain is not None
    expected = mx.dequantize(packed.weight, packed.scales, None, 32, 4, "mxfp4", dtype=mx.float32)
    assert mx.array_equal(plain.weight, expected).item()


def test_a_kind_that_is_not_known_is_left_alone() -> None:
    assert dense.to_dense(nn.QQLinear(128, 32, 32, 8, "mxfp8")) is None
