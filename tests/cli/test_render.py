"""Words for a person: sizes, and what an engine says of itself."""

from __future__ import annotations

import pytest
from exocli.cli import render


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (105_400_000, "105 MB"), (999_600_000, "1.0 GB")],
)
def test_sizes(count: int, text: str) -> None:
    assert render.size_text(count) == text


def test_an_engines_facts() -> None:
    facts = {
        "dtype": "float32",
        "weight_bytes": 538_060_032,
        "kv_bytes_per_token": 46_080,
        "kv_bits": None,
        "context": 8192,
        "notes": ["one", "two"],
        "warnings": [],
    }
    assert render.fact_texts(facts) == [
        "dtype: float32",
        "weight: 538 MB",
        "kv per token: 46 kB",
        "context: 8192",
        "notes: one, two",
    ]
