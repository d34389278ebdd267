"""Draws depend on (seed, index) alone; the filters are mlx-lm's."""

from __future__ import annotations

import mlx.core as mx
import pytest

from exo_mlx.sampling import Settings, key_for, logprob_entry, make_sampler

LOGPROBS = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))


def draws(settings: Settings, count: int = 40) -> list[int]:
    sample = make_sampler(settings)
    return [int(sample(LOGPROBS).item()) for _ in range(count)]


def test_greedy_takes_the_likeliest() -> None:
    assert set(draws(Settings())) == {0}


@pytest.mark.parametrize("temperature", [1e-5, 1e-6, 1e-7, 1e-40])
def test_the_colder_the_surer(temperature: float) -> None:
    """Its reciprocal need not be a float32."""
    assert set(draws(Settings(temperature=temperature, seed=1), 20)) == {0}
    other = make_sampler(Settings(temperature=temperature, seed=1))
    assert other(LOGPROBS[:, ::-1]).item() == 3


def test_the_same_seed_draws_the_same_whatever_is_drawn_beside_it() -> None:
    settings = Settings(temperature=1.0, seed=7)
    alone = draws(settings)
    one, other = make_sampler(settings), make_sampler(Settings(temperature=1.0, seed=8))
    beside = []
    for _ in range(40):
        mx.random.normal((3,))  # the global state moves on; ours must not
        other(LOGPROBS)
        beside.append(int(one(LOGPROBS).item()))
    assert beside == alone
    assert len(set(alone)) > 1


def test_other_seeds_draw_otherwise() -> None:
    assert len({tuple(draws(Settings(temperature=1.0, seed=seed))) for seed in range(20)}) == 20


def test_frequencies_follow_the_probabilities() -> None:
    found = draws(Settings(temperature=1.0, seed=3), 1200)
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert abs(found.count(token) / 1200 - share) < 0.04


def test_filters() -> None:
    assert set(draws(Settings(temperature=1.0, top_k=2), 60)) == {0, 1}
    assert set(draws(Settings(temperature=1.0, top_p=0.7), 60)) == {0, 1}
    assert set(draws(Settings(temperature=1.0, min_p=0.4), 60)) == {0, 1}
    assert set(draws(Settings(temperature=1.0, top_k=4), 150)) == {0, 1, 2, 3}
    assert set(draws(Settings(temperature=1.0, top_k=99), 150)) == {0, 1, 2, 3}
    assert set(draws(Settings(temperature=1.0, top_p=1e-9), 60)) == {0}


def test_keys_differ_between_neighbouring_seeds_and_indices() -> None:
    assert len({key_for(seed, index) for seed in range(100) for index in range(100)}) == 10_000


def test_logprob_entry_lists_the_likeliest_first() -> None:
    entry = logprob_entry(LOGPROBS[0], 1, 2, lambda ids: f"<{ids[0]}>")
    assert entry["token"] == "<1>"
    assert entry["id"] == 1
    assert abs(float(str(entry["logprob"])) - -1.2040) < 1e-3
    top = entry["top"]
    assert isinstance(top, list)
    assert [row[:2] for row in top] == [["<0>", 0], ["<1>", 1]]
