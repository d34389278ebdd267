"""The chunk tuner: powers of two that fit the target, reached soon, and steady under noise."""

from __future__ import annotations

from itertools import pairwise

from exocli.engine import WARM_UP_CHUNK
from exocli.runtime.tuner import LARGEST, ChunkTuner, Pace
from hypothesis import given
from hypothesis import strategies as st

SIZES = {32, 64, 128, 256, 512, 1024, 2048}
speeds = st.floats(1e-6, 1e-1)
"""Seconds a token."""
targets = st.floats(0.02, 5)
leads = st.integers(0, 8)


def settle(tuner: ChunkTuner, per_token: float, steps: int = 60) -> list[int]:
    chosen = []
    for _ in range(steps):
        tuner.observe(tuner.chunk, tuner.chunk * per_token)
        chosen.append(tuner.chunk)
    return chosen


@given(targets, leads, speeds, st.none() | speeds)
def test_it_converges_to_a_size_that_fits(
    target: float, lead: int, per_token: float, warm: float | None
) -> None:
    tuner = ChunkTuner(target, lead)
    assert tuner.chunk == WARM_UP_CHUNK
    tuner.start(warm * WARM_UP_CHUNK if warm is not None else None)
    chosen = settle(tuner, per_token)
    assert set(chosen) <= SIZES and len(set(chosen[-20:])) == 1
    budget = target / (lead + 1)
    last = chosen[-1]
    # Steady within the hysteresis: not over the budget by more than its 15 %, not under by more than 25 %.
    assert last == WARM_UP_CHUNK or last * per_token * 0.85 <= budget * (1 + 1e-9)
    assert last == LARGEST or 2 * last * per_token * 1.25 > budget * (1 - 1e-9)


@given(targets, leads, speeds)
def test_the_start_fits_the_warm_up(target: float, lead: int, per_token: float) -> None:
    chunk = ChunkTuner(target, lead).start(per_token * WARM_UP_CHUNK)
    assert chunk in SIZES
    assert chunk == WARM_UP_CHUNK or chunk * per_token <= target / (lead + 1) * (1 + 1e-9)


@given(targets, speeds, st.lists(st.floats(0.93, 1.07), min_size=40, max_size=40))
def test_noise_does_not_make_it_swing(target: float, per_token: float, noise: list[float]) -> None:
    tuner = ChunkTuner(target)
    settle(tuner, per_token)
    changes = [tuner.observe(tuner.chunk, tuner.chunk * per_token * n) for n in noise]
    assert sum(change is not None for change in changes) <= 1


def test_one_change_is_one_size() -> None:
    tuner = ChunkTuner(0.3)
    seen = [tuner.chunk, *settle(tuner, 1e-5)]
    assert all(b in (a, 2 * a) for a, b in pairwise(seen)) and seen[-1] == LARGEST
    seen = [tuner.chunk, *settle(tuner, 1e-1)]
    assert all(b in (a, a // 2) for a, b in pairwise(seen)) and seen[-1] == WARM_UP_CHUNK


@given(st.integers(0, 15), st.floats(-1, 10))
def test_the_rest_of_a_prompt_and_a_clock_that_stood_still_say_nothing(tokens: int, seconds: float) -> None:
    tuner = ChunkTuner(0.3)
    assert tuner.observe(tokens, seconds) is None and tuner.chunk == WARM_UP_CHUNK
    assert tuner.observe(WARM_UP_CHUNK, 0.0) is None


def test_more_ranks_under_way_mean_smaller_chunks() -> None:
    assert [ChunkTuner(0.3, lead).start(0.001 * 32) for lead in (0, 1, 3)] == [256, 128, 64]


def test_the_slowest_rank_sets_the_pace() -> None:
    pace = Pace(0.3, ranks=2)
    assert pace.start(0.032, lead=1) == 128 and pace.usual == 0.032
    assert pace.observe(1, 0.010, 128) is None
    assert pace.observe(2, 0.010, 128) is None and pace.usual == 0.032  # no step is whole yet
    for step in range(1, 40):
        pace.observe(step, 0.010, 128)
        pace.observe(step + 2, 0.5, 128)
    assert pace.tuner.chunk == 32 and 0.3 < pace.usual <= 0.5
