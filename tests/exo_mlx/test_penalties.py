"""Penalties by their formulas, what they count, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from exocli import BadRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_mlx import penalties

WIDTH = 12
NONE: dict[str, Any] = {}


def run(tokens: list[int], prompt: int, logits: list[float], **asked: Any) -> list[float]:
    row = mx.array([logits], dtype=mx.float32)
    for processor in penalties.processors(penalties.settings(asked, NONE, NONE, WIDTH), prompt):
        row = processor(mx.array(tokens, dtype=mx.int32), row)
    values: Any = row[0].tolist()
    return list(values)


def expected(tokens: list[int], prompt: int, logits: list[float], **asked: Any) -> list[float]:
    """The formulas, token by token: bias, repetition over everything, OpenAI's two over the reply."""
    out = np.array(logits, dtype=np.float64)
    for token, bias in (asked.get("logit_bias") or {}).items():
        out[token] += bias
    factor = asked.get("repetition_penalty") or 1.0
    reply = tokens[prompt:]
    for token in range(WIDTH):
        if token in tokens:
            out[token] = out[token] * factor if out[token] < 0 else out[token] / factor
        out[token] -= asked.get("frequency_penalty", 0.0) * reply.count(token)
        out[token] -= asked.get("presence_penalty", 0.0) * (token in reply)
    return list(out)


ids = st.lists(st.integers(0, WIDTH - 1), max_size=30)


@settings(max_examples=50, deadline=None)
@given(
    before=ids,
    reply=ids,
    logits=st.lists(st.floats(-20, 20, width=32), min_size=WIDTH, max_size=WIDTH),
    repetition=st.floats(0.5, 2.0),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    bias=st.dictionaries(st.integers(0, WIDTH - 1), st.floats(-100, 100), max_size=4),
)
def test_the_formulas(
    before: list[int],
    reply: list[int],
    logits: list[float],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
) -> None:
    asked = {
        "repetition_penalty": repetition,
        "presence_penalty": presence,
        "frequency_penalty": frequency,
        "logit_bias": bias,
    }
    got = run([*before, *reply], len(before), logits, **asked)
    np.testing.assert_allclose(got, expected([*before, *reply], len(before), logits, **asked), atol=1e-3)


def test_the_prompt_counts_for_repetition_alone() -> None:
    flat = [1.0] * WIDTH
    assert run([3, 3], 2, flat, presence_penalty=1.0, frequency_penalty=1.0) == flat
    assert run([3, 3], 2, flat, repetition_penalty=2.0)[3] == 0.5
    assert run([3, 4, 4], 1, flat, frequency_penalty=0.5)[3:5] == [1.0, 0.0]


def test_what_is_said_long_ago_still_counts() -> None:
    tokens = [5, *([6] * 500)]
    assert run(tokens, 0, [1.0] * WIDTH, presence_penalty=1.0)[5] == 0.0
    assert run(tokens, 0, [1.0] * WIDTH, repetition_penalty=2.0)[5] == 0.5


def test_neutral_values_are_no_processors() -> None:
    neutral = {**penalties.NEUTRAL, "logit_bias": {}}
    found = penalties.settings(neutral, NONE, NONE, WIDTH)
    assert penalties.processors(found, 0) == []
    assert not penalties.active(found)
    assert penalties.active(penalties.settings({"logit_bias": {0: 0.0}}, NONE, NONE, WIDTH))


def test_request_before_config_before_model() -> None:
    config, model = {"presence_penalty": 0.5}, {"repetition_penalty": 1.2, "presence_penalty": 1.0}

    def found(asked: dict[str, Any]) -> tuple[float, float]:
        merged = penalties.settings(asked, config, model, WIDTH)
        return merged["repetition_penalty"], merged["presence_penalty"]

    assert found({}) == (1.2, 0.5)
    assert found({"repetition_penalty": 1.0, "presence_penalty": 0}) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("repetition_penalty", 0, "greater than 0"),
        ("repetition_penalty", float("inf"), "greater than 0"),
        ("presence_penalty", 2.5, "from -2 to 2"),
        ("frequency_penalty", -3, "from -2 to 2"),
        ("frequency_penalty", "1", "from -2 to 2"),
        ("logit_bias", {WIDTH: 1}, f"0 to {WIDTH - 1}"),
        ("logit_bias", {-1: 1}, "names token -1"),
        ("logit_bias", {0: 101}, "from -100 to 100"),
        ("logit_bias", {0: float("nan")}, "from -100 to 100"),
        ("logit_bias", dict.fromkeys(range(2000), 1), "at most 1024"),
    ],
)
def test_what_is_refused_names_the_field(field: str, value: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        penalties.settings({field: value}, NONE, NONE, WIDTH)
    assert caught.value.details["field"] == field
    assert field in caught.value.message


def test_settings_are_plain_json() -> None:
    found = penalties.settings({"logit_bias": {3: -100, 5: 2}}, NONE, NONE, WIDTH)
    assert json.loads(json.dumps(found)) == found
    row = mx.zeros((1, WIDTH))
    (processor,) = penalties.processors(json.loads(json.dumps(found)), 0)
    assert processor(mx.array([0]), row)[0, 3].item() == -100.0
