"""Option values that no annotation refuses: numbers out of their range, and what excludes each other."""

from __future__ import annotations

from typing import Any

import pytest
from exocli import UsageError
from exocli.options import build

from exo_mlx.options import LocalOptions
from exo_ring.options import Options as RingOptions


@pytest.mark.parametrize("cls", [LocalOptions, RingOptions])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cancel_latency_ms": "0"}, "cancel_latency_ms must be at least 1, not 0"),
        ({"chunk": "-3"}, "chunk must be at least 1"),
        ({"blas_threads": 0}, "blas_threads must be at least 1"),
        ({"context": "-5"}, "context must be at least 1"),
        ({"kv_budget": 0}, "kv_budget must be at least 1"),
        ({"cache_entries": -1}, "cache_entries must be at least 0"),
        ({"cache_tokens": "-1"}, "cache_tokens must be at least 0"),
        ({"kv_bits": "3"}, "kv_bits takes 8|4 or none"),
        ({"kv_group_size": "16"}, "kv_group_size takes 64|32|128"),
        ({"cpu_dtype": "float16"}, "cpu_dtype takes auto|float32|keep"),
    ],
)
def test_out_of_range_is_named(cls: type[Any], given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(cls, [given], "the backend")
    assert words in caught.value.message


@pytest.mark.parametrize("cls", [LocalOptions, RingOptions])
def test_the_least_of_each_and_none(cls: type[Any]) -> None:
    build(
        cls, [{"chunk": "1", "cache_entries": "0", "cache_tokens": "0", "kv_budget": "none"}], "the backend"
    )
