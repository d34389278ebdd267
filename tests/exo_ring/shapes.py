"""The default model's sizes."""

from __future__ import annotations

from exo_ring.shape import Shape

SMOL = Shape(
    kind="llama",
    layers=((7_000_000, 3_540_000),) * 30,
    embedding=(56_000_000, 28_300_000),
    head=(0, 0),
    heads=9,
    kv_heads=3,
    intermediate=1536,
    group_size=None,
    kv_values=384,
)
