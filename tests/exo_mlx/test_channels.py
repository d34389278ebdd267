"""gpt-oss's channels: its special tokens in a tokenizer of bytes, its replies as OpenAI documents them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from exo_mlx import channels
from tests.exo_mlx.saying import WEATHER, pieces, say

ANALYSIS = "<|channel|>analysis<|message|>They greet me.<|end|>"
FINAL = "<|channel|>final<|message|>Hello there."
START = "<|start|>assistant"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}'
ROME = [("weather", {"city": "Rome"})]


@pytest.fixture(scope="module")
def gptoss(tmp_path_factory: pytest.TempPathFactory) -> Any:
    special = [*channels.MARKS, "<|constrain|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(special + alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    path: Path = tmp_path_factory.mktemp("gptoss") / "tokenizer.json"
    tokenizer.save(str(path))
    fast = PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="<|return|>")
    return TokenizerWrapper(fast, BPEStreamingDetokenizer)


def test_which_models_reply_so(gptoss: Any, qwen3: Any) -> None:
    assert channels.known(gptoss)
    assert not channels.known(qwen3)


def test_a_thought_and_an_answer(gptoss: Any) -> None:
    said = say(gptoss, ANALYSIS + START + FINAL, stop=["They", "channel"])
    assert (said.thought, said.text, said.reason) == ("They greet me.", "Hello there.", "stop")
    assert said.reasoning_tokens >= len("They greet me.")


def test_a_thought_that_is_cut_stays_one(gptoss: Any) -> None:
    said = say(gptoss, "<|channel|>analysis<|message|>They gr", "length")
    assert (said.thought, said.text, said.reason) == ("They gr", "", "length")


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        CALL + "<|call|>",
        ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>',
    ],
)
def test_a_call(gptoss: Any, call: str) -> None:
    said = say(gptoss, ANALYSIS + START + call, tools=[WEATHER])
    assert (said.thought, said.calls, said.text) == ("They greet me.", ROME, "")
    assert said.reason == "tool_calls"


def test_a_word_before_the_call(gptoss: Any) -> None:
    said = say(gptoss, f"<|channel|>commentary<|message|>I look.<|end|>{START}{CALL}", tools=[WEATHER])
    assert (said.text, said.calls) == ("I look.", ROME)


def test_a_call_that_is_cut_is_text(gptoss: Any) -> None:
    said = say(gptoss, CALL[:-3], "length", tools=[WEATHER])
    assert said.calls == []
    assert said.text.endswith('<|message|>{"city": "Rom')


def test_an_answer_in_json(gptoss: Any) -> None:
    said = say(gptoss, "<|channel|>final <|constrain|>json<|message|>{}")
    assert said.text == "{}"


def test_what_is_continued_is_an_answer(gptoss: Any) -> None:
    assert say(gptoss, " final words", continuing=True).text == " final words"


@given(cuts=st.lists(st.integers(0, 1 << 16), max_size=8))
def test_the_cuts_do_not_matter(gptoss: Any, cuts: list[int]) -> None:
    said = say(gptoss, pieces(gptoss, ANALYSIS + START + CALL, cuts), tools=[WEATHER])
    assert (said.thought, said.calls, said.text) == ("They greet me.", ROME, "")
