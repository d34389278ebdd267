"""Who holds what: every layer once, in order; memory and reasons as numbers say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exocli import ModelBroken, OutOfMemory, UsageError
from hypothesis import given
from hypothesis import strategies as st

from exo_ring import plan
from exo_ring.plan import OVERHEAD, Machine
from exo_ring.shape import Shape, shape_from
from tests.exo_ring.shapes import SMOL

GB = 10**9
EVEN = replace(SMOL, heads=8, kv_heads=4)


def machines(*gigabytes: float, **fields: object) -> list[Machine]:
    return [
        Machine(
            **{  # type: ignore[arg-type]
                "host": f"h{i}",
                "total": int(g * GB),
                "available": int(g * GB),
                "cores": 8,
                "ranks": 1,
                "float32": False,
                "latency_s": 1e-4,
                **fields,
            }
        )
        for i, g in enumerate(gigabytes)
    ]


@given(
    layers=st.lists(st.integers(1, 100), min_size=1, max_size=24),
    totals=st.lists(st.integers(1, 64) | st.none(), min_size=2, max_size=6),
    ends=st.tuples(st.integers(0, 500), st.integers(0, 500)),
)
def test_every_layer_is_held_once_in_order(
    layers: list[int], totals: list[int | None], ends: tuple[int, int]
) -> None:
    shape = replace(
        SMOL,
        layers=tuple((n * 10**8, n * 5 * 10**7) for n in layers),
        embedding=(ends[0] * 10**7, 1),
        head=(ends[1] * 10**7, 1),
    )
    ranks = [
        replace(m, total=None if t is None else t * GB)
        for m, t in zip(machines(*([1.0] * len(totals))), totals, strict=True)
    ]
    if len(totals) > len(layers):
        with pytest.raises(UsageError, match="ranks cannot share"):
            plan.by_memory(shape, ranks)
        return
    counts = plan.by_memory(shape, ranks)
    assert sum(counts) == len(layers) and min(counts) >= 1 and len(counts) == len(totals)
    made = plan.make(shape, ranks, strategy="pipeline")
    assert [share.start for share in made.shares[1:]] == [share.stop for share in made.shares[:-1]]
    assert sum(s.weight_bytes for s in made.shares) >= sum(n * 10**8 for n in layers)


@given(st.lists(st.integers(4, 256), min_size=2, max_size=5))
def test_no_other_split_leaves_the_fullest_rank_emptier(totals: list[int]) -> None:
    ranks = machines(*totals)
    counts = plan.by_memory(SMOL, ranks)
    fullest = max(n / t for n, t in zip(counts, totals, strict=True))
    for source in range(len(counts)):
        for target in range(len(counts)):
            moved = list(counts)
            moved[source] -= 1
            moved[target] += 1
            if moved[source]:
                assert max(n / t for n, t in zip(moved, totals, strict=True)) >= fullest - 1e-12


def test_by_memory() -> None:
    assert plan.by_memory(SMOL, machines(16, 16)) == [15, 15]
    assert plan.by_memory(SMOL, machines(16, 32)) == [10, 20]
    assert plan.by_memory(SMOL, machines(16, 16, 16)) == [10, 10, 10]
    # Two ranks on one machine have half of it each.
    assert plan.by_memory(SMOL, [*machines(32, ranks=2), *machines(32, ranks=2), *machines(32)]) == [7, 7, 16]


def test_the_ends_count_where_memory_is_tight() -> None:
    heavy = replace(SMOL, embedding=(10 * GB, 1), layers=((GB, 1),) * 10)
    assert plan.by_memory(heavy, machines(100, 100)) == [5, 5]
    assert plan.by_memory(replace(heavy, head=(1, 1)), machines(18, 18)) == [1, 9]


def test_tensor_where_heads_divide_and_neighbours_are_near() -> None:
    made = plan.make(EVEN, machines(16, 16))
    assert made.strategy == "tensor" and "heads divide" in made.why
    assert {(s.start, s.stop) for s in made.shares} == {(0, 30)}
    assert made.shares[0].weight_bytes == 30 * 7_000_000 // 2 + 56_000_000
    assert made.shares[0].kv_bytes_per_token == 384 * 30 * 2 // 2


@pytest.mark.parametrize(
    ("shape", "ranks", "why"),
    [
        (SMOL, machines(16, 16), "9 attention heads and 3 KV heads do not divide by 2"),
        (EVEN, machines(16, 16, latency_s=2e-3), "a message between neighbours takes 2.0 ms"),
        (EVEN, machines(16, 16, latency_s=None), "the time between the neighbours is not known"),
        (EVEN, machines(16, 16, ranks=2, cores=1), "2 ranks share 1 cores on h0"),
        (replace(EVEN, kind="mixtral"), machines(16, 16), 'does not divide the layers of a "mixtral"'),
        (replace(EVEN, group_size=64, intermediate=1600), machines(16, 16), "1600 does not divide by 128"),
    ],
)
def test_auto_says_why_it_is_a_pipeline(shape: Shape, ranks: list[Machine], why: str) -> None:
    made = plan.make(shape, ranks)
    assert made.strategy == "pipeline" and why in made.why


def test_a_split_of_ones_own() -> None:
    made = plan.make(EVEN, machines(16, 16), split=(20, 10))
    assert [(s.start, s.stop) for s in made.shares] == [(0, 20), (20, 30)]
    assert made.why == "Pipeline, since a split was given."


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"split": (20, 9)}, "split=20,9 adds up to 29 layers; smol has 30."),
        ({"split": (10, 10, 10)}, "split=10,10,10 names 3 ranks; the ring has 2."),
        ({"strategy": "tensor"}, "smol cannot run tensor parallel on 2 ranks: 9 attention heads and 3 KV"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(kwargs: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan.make(SMOL, machines(16, 16), name="smol", **kwargs)  # type: ignore[arg-type]
    assert caught.value.message.startswith(said)


def test_a_kind_that_cannot_be_split() -> None:
    mamba = replace(SMOL, kind="mamba2")
    with pytest.raises(UsageError, match='cannot split a "mamba2" model by layers'):
        plan.make(mamba, machines(16, 16))


def test_memory_is_counted_a_machine() -> None:
    big = replace(SMOL, layers=((GB, GB // 2),) * 30)
    made = plan.make(big, machines(64, 64), strategy="pipeline")
    plan.check_memory(made, "big")
    tight = plan.make(big, machines(10, 64), split=(15, 15))
    with pytest.raises(OutOfMemory) as caught:
        plan.check_memory(tight, "big")
    assert caught.value.details["rank"] == 0
    assert caught.value.message.startswith("big needs 15.4 GB for rank 0 on h0, where 10.0 GB are free")
    shared = [replace(m, host="one", ranks=2) for m in machines(20, 20)]
    with pytest.raises(OutOfMemory, match="for ranks 0-1 on one"):
        plan.check_memory(plan.make(big, shared, split=(15, 15)), "big")


def test_float32_counts_parameters() -> None:
    made = plan.make(SMOL, machines(16, 16, float32=True), strategy="pipeline")
    assert made.shares[0].weight_bytes == 4 * (15 * 3_540_000 + 28_300_000)
    assert made.shares[0].needed == made.shares[0].weight_bytes + OVERHEAD
    assert made.shares[0].kv_bytes_per_token == 384 * 15 * 4


def test_tensor_in_float32_needs_the_whole_model_for_a_while() -> None:
    share = plan.make(EVEN, machines(16, 16, float32=True)).shares[0]
    whole = 4 * (30 * 3_540_000 + 28_300_000)
    assert share.needed == whole + OVERHEAD and share.weight_bytes == whole - 4 * 15 * 3_540_000


def test_the_digest_tells_plans_apart_and_not_free_memory() -> None:
    first = plan.make(SMOL, machines(16, 16), strategy="pipeline")
    other = plan.make(SMOL, machines(16, 16, available=GB), strategy="pipeline")
    assert first.digest() == other.digest()
    assert first.digest() != plan.make(SMOL, machines(16, 16), split=(14, 16)).digest()
    assert first.digest() != plan.make(SMOL, machines(16, 16), strategy="pipeline", wire="float16").digest()


def test_a_shape_from_config_and_names() -> None:
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "head_dim": 16,
        "quantization": {"group_size": 64, "bits": 4},
    }
    tensors = {
        "model.embed_tokens.weight": (10, 20),
        "model.layers.0.mlp.up_proj.weight": (3, 6),
        "model.layers.1.mlp.up_proj.weight": (4, 8),
        "model.layers.2.left_over": (1, 1),
        "lm_head.weight": (5, 10),
        "model.norm.weight": (2, 2),
    }
    shape = shape_from(config, tensors)
    assert shape.layers == ((3, 6), (4, 8)) and shape.head == (5, 10) and shape.embedding == (13, 23)
    assert (shape.kv_values, shape.group_size) == (64, 64)
    with pytest.raises(ModelBroken, match="num_hidden_layers"):
        shape_from({"model_type": "x"}, {})
