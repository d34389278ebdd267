"""Whatever the order of its passes, the generator says what mlx-lm's own order says, and no pass is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exocli import Finished, Progress, Sampling, Text

from exo_mlx.batch import LONGEST_END
from tests.exo_mlx import kinds
from tests.exo_mlx.kinds import Driver, prompt

KINDS = ("plain", "sliding", "hybrid", "quantized")
SAMPLINGS = (Sampling(temperature=0.0), Sampling(temperature=0.9, seed=4))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {
        kind: kinds.write(tmp_path_factory.mktemp(kind), kind) for kind in KINDS if kind != "quantized"
    }
    return {**folders, "quantized": folders["plain"]}


@pytest.fixture
def open_driver(folders: dict[str, Path]) -> Any:
    def opened(kind: str = "plain", **options: Any) -> Driver:
        more = {"kv_bits": 8, "kv_group_size": 32} if kind == "quantized" else {}
        return Driver(folders[kind], **more, **options)

    return opened


def passes(driver: Driver) -> list[tuple[int, int]]:
    """(rows, tokens a row) of each pass that the model makes from now on."""
    seen: list[tuple[int, int]] = []

    class Counting:
        def __init__(self, model: Any) -> None:
            self._model = model

        def __call__(self, inputs: Any, **more: Any) -> Any:
            seen.append(inputs.shape)
            return self._model(inputs, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._model, name)

    counting = Counting(driver.engine._loaded.model)
    generator = driver.engine._generator
    generator.model = generator._prompt_batch.model = generator._generation_batch.model = counting
    return seen


def step(driver: Driver) -> tuple[int, int]:
    """→ tokens of prompts that were read, and tokens that were handed on."""
    driver.step()
    info = driver.engine.last_step()
    return info["prefill_tokens"], info["decoded"]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_many_at_odd_moments_say_what_each_says_alone_in_mlx_lms_order(
    open_driver: Any, kind: str, sampling: Sampling
) -> None:
    lazy, eager = open_driver(kind, lazy=True), open_driver(kind)
    assert eager.batch.eager and not lazy.batch.eager
    count = 5 if kind == "quantized" else 14  # what is rounded to 8 bits may fall on the other side
    asked = [(prompt(length, length), count + length % 3) for length in (1, 2, 7, 8, 9, 17, 33, 34, 60)]
    ids = []
    for place, (text, tokens) in enumerate(asked):
        ids.append(eager.start(text, tokens, sampling=sampling))
        eager.step(place % 4)
    said = eager.run(*ids)
    assert said == [lazy.ask(text, tokens, sampling=sampling)[0] for text, tokens in asked]
    assert all(0 < len(reply) <= tokens for reply, (_, tokens) in zip(said, asked, strict=True))


def test_a_reply_of_n_tokens_to_a_short_prompt_is_n_passes(open_driver: Any) -> None:
    eager, lazy = open_driver(), open_driver(lazy=True)
    for driver, wanted in ((eager, [(1, 5), (1, 1), (1, 1)]), (lazy, [(1, 4), *[(1, 1)] * 4])):
        seen = passes(driver)
        assert len(driver.ask(prompt(5), 3)[0]) == 3
        assert seen == wanted


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [
        ([9], [(1, 8), (1, 1)]),  # the chunk is 8: the end is what is left after it
        ([2, 2, 2, 2], [(4, 2)]),
        ([1, 3, 2], [(2, 3), (1, 1)]),  # a single token is mlx-lm's
        ([40], [*[(1, 8)] * 5]),
    ],
)
def test_the_end_of_a_prompt_and_its_last_token_are_one_pass(
    open_driver: Any, lengths: list[int], wanted: list[tuple[int, int]]
) -> None:
    driver = open_driver()
    seen = passes(driver)
    ids = [driver.start(prompt(length, length), 1) for length in lengths]
    driver.run(*ids)
    assert sorted(seen) == sorted(wanted)


def test_ends_of_many_prompts_are_no_larger_a_pass_than_the_smallest_chunk(open_driver: Any) -> None:
    driver = open_driver(chunk=4 * LONGEST_END)
    seen = passes(driver)
    ids = [driver.start(prompt(LONGEST_END // 2 + n, n), 1) for n in range(4)]
    driver.run(*ids)
    joined = [rows * tokens for rows, tokens in seen]
    assert max(joined[:1]) <= LONGEST_END and all(driver.finished(one) for one in ids)


def test_prompts_and_replies_take_turns(open_driver: Any) -> None:
    driver = open_driver()
    one = driver.start(prompt(6), 40)
    assert [step(driver) for _ in range(2)] == [(6, 1), (0, 1)]
    other = driver.start(prompt(80, 5), 4)
    wanted = [*[(8, 0), (0, 1)] * 9, (8, 1), *[(0, 2)] * 3, (0, 1)]
    assert [step(driver) for _ in wanted] == wanted
    assert driver.finished(other) is not None and driver.finished(one) is None


def test_the_first_token_comes_with_the_step_that_reads_the_prompt_to_its_end(open_driver: Any) -> None:
    driver = open_driver()
    one = driver.start(prompt(12), 1)
    driver.step(2)
    kinds_of = [type(event) for event in driver.events[one]]
    assert kinds_of == [Progress, Progress, Progress, Text, Finished]
    assert [event.processed for event in driver.events[one][:3]] == [0, 8, 12]
    finished = driver.finished(one)
    assert finished is not None and finished.reason == "length" and finished.usage.completion_tokens == 1


def test_a_prompt_that_waits_for_a_place_does_not_keep_the_replies_waiting(open_driver: Any) -> None:
    """As many replies as there are places: nothing is read until one ends."""
    driver = open_driver()
    generator = driver.engine._generator
    generator.completion_batch_size = generator.prefill_batch_size = 2
    for number in range(2):
        driver.start(prompt(4, number), 4)
    assert [step(driver) for _ in range(2)] == [(8, 2), (0, 2)]
    driver.start(prompt(4, 9), 2)
    assert [step(driver) for _ in range(4)] == [(0, 2), (0, 2), (4, 1), (0, 1)]
