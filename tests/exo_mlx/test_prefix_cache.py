"""The index decides by tokens; the caches follow it."""

from __future__ import annotations

import mlx.core as mx
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache

from exo_mlx.prefix_cache import KeptCaches, PrefixIndex

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def test_longest_common_prefix_short_of_the_last_token() -> None:
    index = PrefixIndex(10, 1000)
    assert index.lookup([1, 2, 3]) is None
    assert index.add("a", [1, 2, 3, 4], True) == (True, [])
    assert index.lookup([1, 2, 3, 4, 5]) == {"entry": "a", "tokens": 4, "trim": 0}
    assert index.lookup([1, 2, 3, 4]) == {"entry": "a", "tokens": 3, "trim": 1}
    assert index.lookup([1, 2, 9]) == {"entry": "a", "tokens": 2, "trim": 2}
    assert index.lookup([9]) is None


def test_what_cannot_be_trimmed_serves_only_whole() -> None:
    index = PrefixIndex(10, 1000)
    index.add("a", [1, 2, 3], False)
    assert index.lookup([1, 2, 3, 4]) == {"entry": "a", "tokens": 3, "trim": 0}
    assert index.lookup([1, 2, 3]) is None
    assert index.lookup([1, 2, 9]) is None


def test_a_longer_version_replaces_its_prefix() -> None:
    index = PrefixIndex(10, 1000)
    index.add("a", [1, 2], True)
    assert index.add("b", [1, 2, 3], True) == (True, ["a"])


def test_bounds_by_entries_and_by_tokens() -> None:
    index = PrefixIndex(2, 100)
    index.add("a", [1], True)
    index.add("b", [2], True)
    assert index.add("c", [3], True) == (True, ["a"])
    index = PrefixIndex(10, 5)
    index.add("a", [1, 1, 1], True)
    assert index.add("b", [2, 2, 2], True) == (True, ["a"])
    assert index.add("c", [3] * 6, True) == (False, ["c"])
    assert PrefixIndex(0, 100).add("a", [1], True) == (False, ["a"])


@settings(deadline=None)
@given(st.lists(TOKENS, max_size=25), TOKENS, st.booleans())
def test_index_and_caches_never_disagree(prompts: list[list[int]], asked: list[int], trim: bool) -> None:
    """Whatever was added and evicted, a lookup names an entry that is still there and that begins alike."""
    index = PrefixIndex(4, 20)
    there: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        there[str(number)] = prompt
        kept, gone = index.add(str(number), prompt, trim)
        for entry in gone:
            del there[entry]
        assert kept == (str(number) in there)
        assert len(there) <= 4
        assert sum(map(len, there.values())) <= 20
    found = index.lookup(asked)
    if found is not None:
        tokens = found["tokens"]
        assert there[found["entry"]][:tokens] == asked[:tokens]
        assert len(there[found["entry"]]) == tokens + found["trim"]
        assert 0 < tokens < len(asked)


def filled(tokens: int) -> list[KVCache]:
    cache = KVCache()
    values = mx.arange(tokens, dtype=mx.float32).reshape(1, 1, tokens, 1)
    cache.update_and_fetch(values, values)
    return [cache]


def test_taking_a_copy_leaves_the_kept_one_alone() -> None:
    kept = KeptCaches()
    kept.put("a", filled(6))
    taken = kept.take({"entry": "a", "tokens": 4, "trim": 2})
    assert taken is not None
    assert taken[0].offset == 4
    more = mx.full((1, 1, 2, 1), 9.0)
    taken[0].update_and_fetch(more, more)
    again = kept.take({"entry": "a", "tokens": 6, "trim": 0})
    assert again is not None
    assert again[0].keys_and_values()[0].reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
    kept.evict(["a", "unknown"])
    assert kept.take({"entry": "a", "tokens": 4, "trim": 2}) is None
