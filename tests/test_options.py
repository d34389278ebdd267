"""Options by name: what is accepted, and what the one-sentence errors list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from exocli import options
from exocli.errors import UsageError
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    chunk: int | None = None
    ratio: float = 0.5
    fast: bool = False
    dtype: Literal["auto", "float32"] = "auto"
    split: tuple[int, ...] = ()
    host: str = "here"

    def __post_init__(self) -> None:
        if self.ratio < 0:
            raise ValueError("ratio must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needy:
    url: str


def build(*pairs: str, config: dict[str, object] | None = None) -> Engine:
    built: Engine = options.build(Engine, [config or {}, options.split_pairs(pairs)], "the backend x")
    return built


def test_text_becomes_what_the_annotation_says():
    built = build("chunk=64", "ratio=1e-3", "fast=yes", "dtype=float32", "split=20, 10", "host=a=b")
    assert built == Engine(chunk=64, ratio=1e-3, fast=True, dtype="float32", split=(20, 10), host="a=b")


def test_toml_values_are_taken_as_they_are_and_the_command_line_wins():
    assert build("chunk=8", config={"chunk": 4, "split": [1, 2], "ratio": 1}) == Engine(
        chunk=8, split=(1, 2), ratio=1.0
    )


def test_none_and_dashes():
    assert build("chunk=none", config={"chunk": 4}).chunk is None
    assert options.split_pairs(["cpu-dtype=x"]) == {"cpu_dtype": "x"}


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("chunk=many", ["chunk", "a whole number or none", '"many"']),
        ("ratio=x", ["a number"]),
        ("fast=maybe", ["true or false"]),
        ("dtype=int8", ["auto|float32"]),
        ("split=1,b", ["a list with commas (a whole number, …)"]),
        ("chnk=1", ["chnk", "did you mean chunk", "chunk, dtype, fast, host, ratio, split"]),
        ("chunk", ["KEY=VALUE"]),
        ("=1", ["KEY=VALUE"]),
        ("ratio=-1", ["ratio must not be negative"]),
    ],
)
def test_errors_are_one_sentence_that_lists_what_is_valid(pair, words):
    with pytest.raises(UsageError) as caught:
        build(pair)
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message and caught.value.exit_code == 2


@pytest.mark.parametrize("value", [True, 1.5, "x", [1]])
def test_toml_of_another_type_is_refused(value):
    with pytest.raises(UsageError):
        build(config={"chunk": value})


def test_a_backend_without_options_takes_none():
    assert options.build(None, [{}], "the backend x") is None
    assert options.as_dict(None) == {}
    with pytest.raises(UsageError, match="takes no options"):
        options.build(None, [{"a": "1"}], "the backend x")


def test_a_required_option_is_named():
    with pytest.raises(UsageError, match="needs the option url: give -o url=VALUE"):
        options.build(Needy, [], "the backend x")


def test_choices_for_completion():
    assert options.choices(Literal["a", "b"]) == ["a", "b"]
    assert options.choices(bool) == ["true", "false"]
    assert options.choices(Literal["a"] | None) == ["a"]
    assert options.choices(int) == []


@given(st.text(), st.sampled_from(["chunk", "ratio", "fast", "dtype", "split", "host"]))
def test_any_text_is_a_value_or_a_usage_error(text, key):
    try:
        built = build(f"{key}={text}")
    except UsageError as error:
        assert key in error.message
    else:
        assert isinstance(built, Engine)
