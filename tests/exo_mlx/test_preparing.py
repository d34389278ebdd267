"""From a request to what the engine gets: settings by precedence, and all that is refused (B48, B51)."""

from __future__ import annotations

from typing import Any

import pytest
from exocli import BadRequest, ContextOverflow, Message, Request, Sampling

from exo_mlx import preparing
from exo_mlx.loader import load_tokenizer
from exo_mlx.prefix_cache import PrefixIndex
from exo_mlx.preparing import Preparer
from tests.exo_mlx import tiny

END = 2
CONTEXT = 200


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(tiny.write_folder(tmp_path_factory.mktemp("tiny") / "model"))


def preparer(tokenizer: Any, **changes: Any) -> Preparer:
    usual = {"context": CONTEXT, "defaults": {}, "generation": {}, "index": PrefixIndex(4, 1000)}
    return Preparer(tokenizer=tokenizer, name="tiny", end_tokens=frozenset({END}), **{**usual, **changes})


def complete(text: str = "abc", **fields: Any) -> Request:
    return Request(task="complete", prompt=text, **fields)


def chat(text: str = "abc", **fields: Any) -> Request:
    return Request(messages=(Message(role="user", content=text),), **fields)


# ------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("asked", "config", "model", "temperature"),
    [
        ({"temperature": 0.1}, {"temperature": 0.2}, {"temperature": 0.3}, 0.1),
        ({"temperature": 0.0}, {"temperature": 0.2}, {"temperature": 0.3}, 0.0),
        ({}, {"temperature": 0.2}, {"temperature": 0.3}, 0.2),
        ({}, {}, {"temperature": 0.3}, 0.3),
        ({}, {}, {"temperature": 0.3, "do_sample": False}, 0.0),
        ({}, {"temperature": 0.2}, {"do_sample": False}, 0.2),
        ({}, {}, {}, 0.0),
    ],
)
def test_request_before_config_before_model_before_greedy(
    tokenizer: Any, asked: dict[str, Any], config: dict[str, Any], model: dict[str, Any], temperature: float
) -> None:
    made = preparer(tokenizer, defaults=config, generation=model)
    assert made.prepare(complete(sampling=Sampling(**asked))).settings["temperature"] == temperature


def test_filters_that_are_off(tokenizer: Any) -> None:
    off = Sampling(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0)
    settings = preparer(tokenizer).prepare(complete(sampling=off)).settings
    assert (settings["top_p"], settings["top_k"], settings["min_p"]) == (1.0, 0, 0.0)


def test_a_seed_is_drawn_where_nobody_gives_one(tokenizer: Any) -> None:
    made = preparer(tokenizer)
    assert len({made.prepare(complete()).settings["seed"] for _ in range(5)}) == 5
    assert made.prepare(complete(sampling=Sampling(seed=7))).settings["seed"] == 7
    assert 0 <= made.prepare(complete(sampling=Sampling(seed=-1))).settings["seed"] < 1 << 64
    assert preparer(tokenizer, defaults={"seed": 5}).prepare(complete()).settings["seed"] == 5


def test_no_more_tokens_than_there_is_room_for(tokenizer: Any) -> None:
    made = preparer(tokenizer)
    assert made.prepare(complete(max_tokens=5)).max_tokens == 5
    for asked in (None, 10**9):
        found = made.prepare(complete(max_tokens=asked))
        assert found.prompt_tokens + found.max_tokens == CONTEXT


# -------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (complete(""), "prompt", "prompt is empty"),
        (Request(), "messages", "no messages"),
        (chat(max_tokens=0), "max_tokens", "at least 1, not 0"),
        (chat(max_tokens=-1), "max_tokens", "at least 1, not -1"),
        (chat(stop=("",)), "stop", "must not be empty"),
        (chat(stop=("a",) * 257), "stop", "at most 256 strings, not 257"),
        (chat(logprobs=21), "logprobs", "from 0 to 20, not 21"),
        (chat(logprobs=-1), "logprobs", "from 0 to 20"),
        (chat(sampling=Sampling(temperature=-0.1)), "temperature", "from 0 to 100"),
        (chat(sampling=Sampling(temperature=float("nan"))), "temperature", "not nan"),
        (chat(sampling=Sampling(temperature=float("inf"))), "temperature", "not inf"),
        (chat(sampling=Sampling(top_p=1.5)), "top_p", "from 0 to 1, not 1.5"),
        (chat(sampling=Sampling(min_p=-1)), "min_p", "from 0 to 1"),
        (chat(sampling=Sampling(top_k=-2)), "top_k", "from -1"),
        (chat(sampling=Sampling(presence_penalty=2.5)), "presence_penalty", "from -2 to 2"),
        (chat(sampling=Sampling(repetition_penalty=0)), "repetition_penalty", "greater than 0"),
        (chat(sampling=Sampling(logit_bias={10**6: 1.0})), "logit_bias", "token 1000000"),
        (chat(format={"type": "xml"}), "format", "not xml"),
        (chat(tools=({"type": "function"},)), "tools", r"tools\[0\]"),
        (chat(tool_choice="required"), "tool_choice", "there are no tools"),
    ],
)
def test_what_is_wrong_is_named(tokenizer: Any, request_: Request, field: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        preparer(tokenizer).prepare(request_)
    assert caught.value.details["field"] == field
    assert "\n" not in caught.value.message


def test_values_of_config_and_model_are_checked_as_well(tokenizer: Any) -> None:
    for source in ({"defaults": {"top_p": 3}}, {"generation": {"top_p": "0.9"}}):
        with pytest.raises(BadRequest, match="top_p must be from 0 to 1"):
            preparer(tokenizer, **source).prepare(chat())


@pytest.mark.parametrize("size", [CONTEXT - 1, CONTEXT, 5000])
def test_over_the_context_tells_both_counts(tokenizer: Any, size: int) -> None:
    if size < CONTEXT:
        assert preparer(tokenizer).prepare(complete("x" * size)).prompt_tokens == size
        return
    with pytest.raises(
        ContextOverflow, match=f"prompt is too long: {size} tokens; tiny takes {CONTEXT}"
    ) as caught:
        preparer(tokenizer).prepare(complete("x" * size))
    assert (caught.value.details["prompt_tokens"], caught.value.details["context"]) == (size, CONTEXT)


def test_a_prompt_that_is_too_long_by_far_is_not_read_to_its_end(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SURE_TO_COUNT", 1000)
    begun = preparing.A_TOKEN * CONTEXT
    with pytest.raises(ContextOverflow, match=f"more than {begun} tokens; tiny takes") as caught:
        preparer(tokenizer).prepare(complete("x" * 10**6))
    assert caught.value.details["prompt_tokens"] == begun
    with pytest.raises(ContextOverflow, match=r"too long: more than \d+ tokens; memory here holds 50"):
        preparer(tokenizer, context=None, kv_tokens=50).prepare(complete("x" * 10**6))
    short = preparer(tokenizer, context=None).prepare(complete("x" * 5000))
    assert short.prompt_tokens == 5000  # nothing bounds it


def test_a_long_text_of_few_tokens_is_read_to_its_end(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SURE_TO_COUNT", 100)
    monkeypatch.setattr(preparing, "A_TOKEN", 1)
    text = "hel" * (CONTEXT - 1)  # one token each
    assert preparer(tokenizer).prepare(complete(text)).prompt_tokens == CONTEXT - 1
