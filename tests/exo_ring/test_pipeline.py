"""Every architecture on several ranks gives what one rank gives, bit for bit, at every kind of split, and
tensor parallel but for rounding, while requests come, are cut off, resume and leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exo_ring.pipeline import ARCHITECTURES
from exo_ring.plan import PIPELINE_KINDS, TENSOR_KINDS
from tests.exo_ring import ranks
from tests.exo_ring.models import CONFIGS

# gemma3's pattern here is 3 layers long, llama-sliding's 2: both are cut across it as well.
TWO = [
    ["llama", [1, 3]],
    ["llama-untied", [3, 1]],
    ["llama-sliding", [1, 3]],
    ["mistral", [2, 2]],
    ["qwen2", [1, 3]],
    ["qwen3", [3, 1]],
    ["qwen3_moe", [1, 3]],
    ["mixtral", [3, 1]],
    ["gemma3_text", [3, 3]],
    ["gemma3_text", [2, 4]],
    ["gemma3", [5, 1]],
]
THREE = [["llama", [2, 1, 1]], ["gemma3_text", [1, 4, 1]]]
TENSOR = [[name, None] for name in ("llama", "qwen3_moe", "llama-untied", "mistral", "qwen2", "qwen3")]
ROUNDING = 2e-4
"""Sums of parts are rounded otherwise than the sum of the whole."""


def outcome(cases: list[Any], size: int, folder: Path) -> list[dict[str, Any]]:
    answers = ranks.run("peer_pipeline", size, folder, json.dumps(cases))
    assert [status for status, _, _ in answers] == [0] * size, answers
    return [json.loads(line) for line in answers[-1][1].splitlines()]


@pytest.mark.parametrize(
    ("cases", "size"),
    [
        (TWO + TENSOR[:2], 2),
        pytest.param(TENSOR[2:], 2, marks=pytest.mark.soak),
        pytest.param(THREE, 3, marks=pytest.mark.soak),
    ],
    ids=["2 ranks", "2 ranks, tensor", "3 ranks"],
)
def test_as_on_one_rank(cases: list[Any], size: int, tmp_path: Path) -> None:
    found = outcome(cases, size, tmp_path)
    assert [f["case"] for f in found] == cases
    for case in found:
        assert case["same"], case
        assert case["off"] == 0.0 if case["case"][1] else case["off"] < ROUNDING, case
        assert case["lengths"] == [12, 12, 12, 12]
        assert case["distinct"] > 3, "the random model says too little to prove anything"


def test_every_architecture_is_tried() -> None:
    assert {CONFIGS[name]["model_type"] for name, _ in TWO} == set(ARCHITECTURES) == set(PIPELINE_KINDS)
    assert {CONFIGS[name]["model_type"] for name, _ in TENSOR} == set(TENSOR_KINDS)
