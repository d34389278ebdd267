"""Formats, penalties and their failures in a running batch of a tiny model."""

from __future__ import annotations

import json
import re
from typing import Any

import mlx.core as mx
import pytest
from exocli import BadRequest, Finished, Prepared, Sampling, Text

from exo_mlx.guard import Guard
from tests.exo_mlx.kinds import Driver, prompt, write

WORD = {"type": "regex", "pattern": "[a-f]{3,9}"}
LIST = {
    "type": "json_schema",
    "schema": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 5},
}
ANSWER = {"type": "grammar", "syntax": "gbnf", "grammar": 'root ::= ("yes" | "no") "!"'}
WARM = Sampling(temperature=1.0, seed=5)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(write(tmp_path_factory.mktemp("plain") / "plain", "plain"))


def text(driver: Driver, one: str) -> str:
    return "".join(event.text for event in driver.events[one] if isinstance(event, Text))


def reason(driver: Driver, one: str) -> str:
    finished = driver.finished(one)
    assert isinstance(finished, Finished)
    return finished.reason


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), WARM])
def test_several_formats_in_one_batch(driver: Driver, sampling: Sampling) -> None:
    """Each follows its own, those without one say what they say alone."""
    formats = [WORD, None, LIST, ANSWER, None, {"type": "json_object"}]
    fields: dict[str, Any] = {"max_tokens": 30, "sampling": sampling}
    alone = [driver.ask(prompt(20 + i, i), format=f, **fields)[0] for i, f in enumerate(formats)]
    ids = [driver.start(prompt(20 + i, i), format=f, **fields) for i, f in enumerate(formats)]
    assert driver.run(*ids) == alone
    assert re.fullmatch("[a-f]{3,9}", text(driver, ids[0]))
    assert all(0 <= n <= 9 for n in json.loads(text(driver, ids[2])))
    assert text(driver, ids[3]) in ("yes!", "no!")
    assert [reason(driver, ids[i]) for i in (0, 2, 3)] == ["stop"] * 3
    assert text(driver, ids[5]).startswith("{")


def test_one_that_joins_late_and_one_that_leaves(driver: Driver) -> None:
    alone = driver.ask(prompt(30, 7), 20, format=WORD, sampling=WARM)[0]
    other = driver.start(prompt(30, 8), 40, sampling=WARM)
    driver.step(8)
    late = driver.start(prompt(30, 7), 20, format=WORD, sampling=WARM)
    driver.step(5)
    driver.cancel(other)
    assert driver.run(late) == [alone]


def test_a_tiny_limit_is_length(driver: Driver) -> None:
    one = driver.start(prompt(10), 2, format=WORD)
    driver.run(one)
    assert reason(driver, one) == "length"
    assert re.fullmatch("[a-f]{2}", text(driver, one))


def test_a_stop_string_ends_it_too(driver: Driver) -> None:
    pattern = {"type": "regex", "pattern": "abcabcabc"}
    one = driver.start(prompt(10), 20, format=pattern, stop=("ca",))
    driver.run(one)
    finished = driver.finished(one)
    assert finished is not None
    assert (finished.reason, finished.stop, text(driver, one)) == ("stop", "ca", "ab")


@pytest.mark.parametrize("steps", [2, 7])
def test_cancelled_and_sent_again_it_says_the_same(driver: Driver, steps: int) -> None:
    """In prefill and while it writes; the first run has another beginning, so that no cache serves it."""
    fields: dict[str, Any] = {"max_tokens": 20, "format": LIST, "sampling": WARM}
    said = prompt(40, 20 + steps)
    fresh = Driver(driver.path)
    whole, cached = fresh.ask(said, **fields)
    assert cached == 0
    one = driver.start(said, **fields)
    driver.step(steps)
    finished = driver.cancel(one)
    assert finished.cancel is not None and finished.cancel.phase == ("prefill" if steps == 2 else "decode")
    again, cached = driver.ask(said, **fields)
    assert cached >= 8
    assert again == whole


def test_logprobs_are_the_models_own(driver: Driver) -> None:
    """Before bias, penalties and grammar: what the model thought of the token that it was made to say."""
    free = driver.start(prompt(25, 3), 1, logprobs=5)
    bound = driver.start(prompt(25, 3), 1, logprobs=5, format=WORD, sampling=Sampling(logit_bias={70: 5.0}))
    driver.run(free, bound)

    def first(one: str) -> dict[str, Any]:
        return next(e.logprobs[0] for e in driver.events[one] if isinstance(e, Text) and e.logprobs)

    mine, theirs = first(bound), first(free)
    assert [row[1] for row in mine["top"]] == [row[1] for row in theirs["top"]]
    assert [row[2] for row in mine["top"]] == pytest.approx([row[2] for row in theirs["top"]], abs=1e-4)
    assert mine["id"] != theirs["id"]
    assert mine["logprob"] < theirs["logprob"]


def test_bias_and_penalties_reach_the_draw(driver: Driver) -> None:
    (free, _) = driver.ask(prompt(20, 4), 12)
    banned, _ = driver.ask(prompt(20, 4), 12, sampling=Sampling(logit_bias={free[0]: -100.0}))
    assert free[0] not in banned
    wanted, _ = driver.ask(prompt(20, 4), 12, sampling=Sampling(logit_bias={77: 100.0}))
    assert set(wanted) == {77}
    never, _ = driver.ask(
        prompt(20, 4), 12, sampling=Sampling(logit_bias={77: 80.0, 78: 79.0}, presence_penalty=2.0)
    )
    assert never[:2] == [77, 78]
    counted, _ = driver.ask(
        prompt(20, 4), 6, sampling=Sampling(logit_bias={77: 80.0, 78: 77.0}, frequency_penalty=1.0)
    )
    assert counted.count(77) > counted.count(78) > 0


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("format", {"format": {"type": "regex", "pattern": "("}}),
        ("presence_penalty", {"sampling": Sampling(presence_penalty=9.0)}),
        ("logit_bias", {"sampling": Sampling(logit_bias={10**6: 1.0})}),
    ],
)
def test_what_is_wrong_is_refused_before_prefill(driver: Driver, field: str, asked: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        driver.start(prompt(10), **asked)
    assert caught.value.details["field"] == field


def test_a_processor_that_fails_fails_its_request_alone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B24: at every place of a reply, the last one too; the others say what they say alone."""
    survivors = [prompt(20 + i, 30 + i) for i in range(3)]
    alone = [driver.ask(one, 12, sampling=WARM)[0] for one in survivors]

    def breaking(at: int) -> Guard:
        count = 0

        def processor(tokens: mx.array, logits: mx.array) -> mx.array:
            nonlocal count
            count += 1
            if count > at:
                raise ZeroDivisionError("a fault\nmade by a test")
            return logits

        return Guard([processor], logprobs=False)

    own = driver.engine.processors
    places: dict[str, int] = {}

    def processors(prepared: Prepared) -> Guard | None:
        at = prepared.settings["penalties"]["presence_penalty"]
        return breaking(int(at)) if at else own(prepared)

    monkeypatch.setattr(driver.engine, "processors", processors)
    for at in (1, 2):
        sampling = Sampling(presence_penalty=float(at), temperature=0.0)
        places[driver.start(prompt(22, 40 + at), at + 1, sampling=sampling)] = at
    ids = [driver.start(one, 12, sampling=WARM) for one in survivors]
    driver.run(*places, *ids)
    assert [driver.tokens(one) for one in ids] == alone
    for one, at in places.items():
        finished = driver.finished(one)
        assert finished is not None and finished.error is not None
        assert finished.reason == "error"
        assert "ZeroDivisionError: a fault made by a test" in finished.error["message"]
        assert finished.usage.completion_tokens == at
    assert driver.engine.step() == []
    assert driver.ask(survivors[0], 12, sampling=WARM)[0] == alone[0]


def test_a_guard_answers_for_each_draw_in_order() -> None:
    def refuse_third(tokens: mx.array, logits: mx.array) -> mx.array:
        if tokens.size == 3:
            raise ValueError("three")
        return logits + 1

    guard = Guard([refuse_third], logprobs=True)
    row = mx.array([[1.0, 2.0]])
    results = [guard(mx.zeros(n, mx.int32), row) for n in (2, 3, 4)]
    assert [mx.array_equal(result, row) for result in results] == [False, True, True]
    draws = [guard.take() for _ in range(3)]
    assert [draw.error is not None for draw in draws] == [False, True, False]
    assert guard.failed
    for draw in draws:
        assert draw.logprobs is not None
        assert mx.exp(draw.logprobs).sum().item() == pytest.approx(1.0)
