"""GGUF's block formats as MLX's affine quantization, group 32, value for value.

Both say weight = scale x q + bias; only the order of the bits and the storage of scale and bias differ.
With float32 scales and biases nothing is rounded. Block layouts: ggml's ggml-common.h. Pure numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GROUP = 32

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_4 = np.uint8(4)


@dataclass(frozen=True, slots=True)
class Format:
    """One GGUF type: `bits` of MLX, `block` weights in `size` bytes; `unpack` gives, for blocks of
    shape (n, size), the q values (n, block) as uint8, and scales and biases (n, block // 32)."""

    bits: int
    block: int
    size: int
    unpack: Callable[[Bytes], tuple[Bytes, Floats, Floats]]


@dataclass(frozen=True, slots=True)
class Affine:
    """weight (rows, columns x bits / 32) uint32; scales and biases (rows, columns / 32) float32."""

    weight: NDArray[np.uint32]
    scales: Floats
    biases: Floats


def repack(data: Bytes, format: Format) -> Affine:
    """Rows of GGUF blocks (rows, bytes a row) in MLX's layout."""
    rows = data.shape[0]
    q, scales, biases = format.unpack(data.reshape(-1, format.size))
    return Affine(_pack(q.reshape(rows, -1), format.bits), scales.reshape(rows, -1), biases.reshape(rows, -1))


def _pack(q: Bytes, bits: int) -> NDArray[np.uint32]:
    """One little-endian stream of `bits` bits a value along each row, in words of 32."""
    if bits == 8:
        packed = q
    elif bits == 4:
        packed = q[:, 0::2] | (q[:, 1::2] << _4)
    else:
        stream = np.unpackbits(q[..., None], axis=-1, count=bits, bitorder="little")
        packed = np.packbits(stream.reshape(q.shape[0], -1), axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u4")


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as (n, 1) float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(qs: Bytes) -> Bytes:
    """Low nibbles are the first half of a group, high ones the second."""
    return np.concatenate([qs & 0x0F, qs >> 4], axis=-1)


def _fifth_bits(qh: Bytes) -> Bytes:
    """Four bytes a group hold the fifth bit of its 32 values, in order; moved to where it counts 16."""
    return np.unpackbits(qh, axis=-1, bitorder="little") << _4


def _q4_0(b: Bytes) -> tuple[Bytes, Floats, Floats]:
    d = _half(b, 0)
    return _nibbles(b[:, 2:]), d, -8 * d


def _q4_1(b: Bytes) -> tuple[Bytes, Floats, Floats]:
    return _nibbles(b[:, 4:]), _half(b, 0), _half(b, 2)


def _q5_0(b: Bytes) -> tuple[Bytes, Floats, Floats]:
    d = _half(b, 0)
    return _nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6]), d, -16 * d


def _q5_1(b: Bytes) -> tuple[Bytes, Floats, Floats]:
    return _nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8]), _half(b, 0), _half(b, 2)


def _q8_0(b: Bytes) -> tuple[Bytes, Floats, Floats]:
    d = _half(b, 0)
    return b[:, 2:] ^ np.uint8(0x80), d, -128 * d  # two's complement plus 128


_CODES = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int16)
"""The sixteen values of the IQ4 types (ggml's kvalues_iq4nl): more than four bits of an even scale, so they
become eight, with -128 as zero."""
_CODES_8 = (_CODES + 128).astype(np.uint8)


def _iq4_nl(b: Bytes) -> tuple[Bytes, Floats, Floats]:
    d = _half(b, 0)
    return _CODES_8[_nibbles(b[:, 2:])], d, -128 * d


def _iq4_xs(b: Bytes) -> tuple[Bytes, Floats, Floats]:
    """d, then six bits of scale for each of 8 groups: the upper two in a word, the lower four in nibbles."""
    high = np.ascontiguousarray(b[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([b[:, 4:8] & 0x0F, b[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    scale = _half(b, 0) * ((high << 4 | low).astype(np.float32) - 32)
    q = _CODES_8[_nibbles(b[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256)]
    return q, scale, -128 * scale


def _k_scales(b: Bytes) -> tuple[Floats, Floats]:
    """Scale and bias of the 8 groups of a K block: d, dmin, then twelve bytes with 6 bits for each of
    8 scales and 8 minima (groups 4-7 have their upper two bits beside those of groups 0-3)."""
    s = b[:, 4:16]
    low, mid, high = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    scale = np.concatenate([low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)], axis=-1)
    minimum = np.concatenate([mid & 0x3F, (high >> 4) | ((mid >> 2) & 0x30)], axis=-1)
    return _half(b, 0) * scale.astype(np.float32), -(_half(b, 2) * minimum.astype(np.float32))


def _k_nibbles(qs: Bytes) -> Bytes:
    """32 bytes hold two groups: the low nibbles are the first, the high ones the second."""
    return _nibbles(qs.reshape(-1, 4, 32)).reshape(-1, 256)


def _q4_k(b: Bytes) -> tuple[Bytes, Floats, Floats]:
    return (_k_nibbles(b[:, 16:]), *_k_scales(b))


def _q5_k(b: Bytes) -> tuple[Bytes, Floats, Floats]:
    qh = b[:, 16:48]  # bit g of byte i: the fifth bit of value i in group g
    fifth = ((qh[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)) << _4
    return (_k_nibbles(b[:, 48:]) | fifth.reshape(-1, 256), *_k_scales(b))


FORMATS: dict[str, Format] = {
    "Q4_0": Format(4, 32, 18, _q4_0),
    "Q4_1": Format(4, 32, 20, _q4_1),
    "Q5_0": Format(5, 32, 22, _q5_0),
    "Q5_1": Format(5, 32, 24, _q5_1),
    "Q8_0": Format(8, 32, 34, _q8_0),
    "Q4_K": Format(4, 256, 144, _q4_k),
    "Q5_K": Format(5, 256, 176, _q5_k),
    "IQ4_NL": Format(8, 32, 18, _iq4_nl),
    "IQ4_XS": Format(8, 256, 136, _iq4_xs),
}
"""What is repacked."""
DENSE = frozenset(
    (
        *("Q2_K", "Q3_K", "Q6_K", "TQ1_0", "TQ2_0", "MXFP4"),
        *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
    )
)
"""What becomes float32, by the gguf package: groups of 16, values of a lattice, no affine scale."""
