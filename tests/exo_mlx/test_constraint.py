"""Where a grammar applies in a reply, with scripted logits over a real tokenizer."""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import mlx.core as mx
import pytest
from exocli import BadRequest, EngineFailed, Message, Request
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import load

from exo_mlx import constraint
from exo_mlx.constraint import Constraint
from exo_mlx.grammar import Grammars
from tests.exo_mlx import tiny

END = 2
DIGITS = {"type": "regex", "pattern": "[0-9]{2,3}"}
JSON = {"type": "json_object"}
TOOL = {"type": "function", "function": {"name": "f"}}
CALLS = "{% if tools %}<tool_call>{{ tool_call.name }}{% endif %}"
"""What mlx-lm knows a format of tool calls by."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny one, with the marks of thinking and of tool calls as tokens."""
    folder = tiny.write_folder(tmp_path_factory.mktemp("tiny") / "model")
    plain = load(folder)._tokenizer
    plain.add_special_tokens(
        {"additional_special_tokens": ["<think>", "</think>", "<tool_call>", "</tool_call>"]}
    )
    plain.chat_template = tiny.TEMPLATE + CALLS
    plain.save_pretrained(folder)
    return load(folder, eos_token_ids=[END])


@pytest.fixture(scope="module")
def grammars(tokenizer: Any) -> Grammars:
    return Grammars(tokenizer, [END], "tiny")


class Talk:
    """A model that would say `wish`, one character or mark a token, and what it may say of it."""

    def __init__(self, tokenizer: Any, grammars: Grammars, **asked: Any) -> None:
        self.tokenizer, self.grammars = tokenizer, grammars
        self.prompt: list[int] = tokenizer.encode(asked.pop("prompt", "hello"), add_special_tokens=False)
        thinking = asked.pop("thinking", False)
        messages = asked.pop("messages", (Message(role="user", content="hello"),))
        request = Request(**{"messages": messages, "format": DIGITS, **asked})
        made = constraint.settings(request, self.prompt, thinking, tokenizer, grammars)
        self.settings = json.loads(json.dumps(made))  # it travels in the log
        self.constraint = self.fresh()
        self.said: list[int] = []

    def fresh(self) -> Constraint:
        grammar = self.grammars.start(self.settings["format"])
        return Constraint(self.settings, [END], len(self.prompt), grammar)

    def ask(self, said: list[int], wish: int | None = None, constraint: Constraint | None = None) -> mx.array:
        """The logits (tokens,) left after `said`, of a model whose favourite is `wish`."""
        logits = mx.zeros((1, len(self.tokenizer) + 5))
        if wish is not None:
            logits[0, wish] = 9.0
        row = (constraint or self.constraint)(mx.array([*self.prompt, *said], mx.int32), logits)
        return row[0]

    def say(self, *wishes: str) -> str:
        """What becomes of these wishes, token by token."""
        for wish in wishes:
            marks = self.tokenizer.encode(wish, add_special_tokens=False)
            for token in marks if len(marks) == 1 else [self.id(letter) for letter in wish]:
                self.said.append(int(mx.argmax(self.ask(self.said, token)).item()))
        return self.text

    def id(self, mark: str) -> int:
        (token,) = self.tokenizer.encode(mark, add_special_tokens=False)
        return int(token)

    @property
    def text(self) -> str:
        return str(self.tokenizer.decode(self.said))

    def allowed(self) -> set[str]:
        row: Any = self.ask(self.said).tolist()
        return {self.tokenizer.decode([i]) for i, value in enumerate(row) if value > -1e9}


@pytest.fixture
def talk(tokenizer: Any, grammars: Grammars) -> Any:
    return lambda **asked: Talk(tokenizer, grammars, **asked)


def test_only_what_the_grammar_allows_and_an_end_only_where_it_may_end(talk: Any) -> None:
    one = talk()
    assert one.allowed() == set("0123456789")
    assert one.say("7") == "7"
    assert "<|im_end|>" not in one.allowed()
    one.say("7")
    assert one.allowed() == {*"0123456789", "<|im_end|>"}
    one.say("7")
    assert one.allowed() == {"<|im_end|>"}


def test_rows_beyond_the_vocabulary_are_no_tokens(talk: Any) -> None:
    one = talk()
    row: Any = one.ask([]).tolist()
    assert row[-5:] == [float("-inf")] * 5


def test_after_the_end_nothing_is_changed(talk: Any) -> None:
    """mlx-lm asks for one token more than it hands on."""
    one = talk()
    one.say("7", "7", "<|im_end|>")
    assert len(one.allowed()) > 100


def test_an_open_thought_is_free_but_for_ending(talk: Any) -> None:
    one = talk(thinking=True)
    assert one.say("hm", "<|im_end|>")[:2] == "hm"
    assert END not in one.said
    assert "<|im_end|>" not in one.allowed() and len(one.allowed()) > 100
    one.say("</think>")
    assert one.allowed() == set("0123456789")
    assert one.say("4", "2").endswith("</think>42")


def test_a_thought_is_the_models_own_choice(talk: Any) -> None:
    one = talk()
    assert one.say("<think>", "so", "</think>", "x", "5") == f"<think>so</think>{one.text[-2]}5"
    assert one.text[-2].isdigit()
    other = talk()
    assert other.say("s")[0].isdigit()
    assert "<think>" not in other.allowed()


@pytest.mark.parametrize(
    "asked",
    [
        {"reasoning": False},
        {"reasoning": "none"},
        {"prompt": "hello<think>\n\n</think>\n\n"},
        {"task": "complete", "messages": (), "prompt": "hello"},
    ],
)
def test_where_it_must_not_think_the_answer_begins_at_once(talk: Any, asked: dict[str, Any]) -> None:
    assert talk(**asked).say("<think>")[0].isdigit()


def test_an_earlier_turns_thought_does_not_forbid_one_now(talk: Any) -> None:
    assert talk(prompt="<think>a</think>b<|im_end|>c").say("<think>") == "<think>"


def test_a_tool_call_is_the_models_own_choice_where_there_are_tools(talk: Any) -> None:
    assert talk(tools=(TOOL,)).say("<tool_call>", "{}", "</tool_call>") == "<tool_call>{}</tool_call>"
    assert talk().say("<tool_call>")[0].isdigit()
    assert talk(tools=(TOOL,), tool_choice="none").say("<tool_call>")[0].isdigit()
    thought = talk(tools=(TOOL,), thinking=True)
    assert thought.say("</think>", "<tool_call>", "x") == "</think><tool_call>x"


def test_a_beginning_that_is_continued_counts(talk: Any) -> None:
    def begun(text: str) -> Any:
        turns = (Message(role="user", content="?"), Message(role="assistant", content=text))
        return talk(messages=turns, continue_last=True)

    one = begun("12")
    assert one.allowed() == {*"0123456789", "<|im_end|>"}
    assert begun("123").allowed() == {"<|im_end|>"}
    with pytest.raises(BadRequest, match="does not fit the format") as caught:
        begun("1x")
    assert caught.value.details["field"] == "format"


def test_a_token_that_does_not_follow_is_an_error(talk: Any) -> None:
    one = talk()
    with pytest.raises(EngineFailed, match="does not follow"):
        one.ask([one.id("x")])


def test_a_grammar_that_failed_elsewhere_is_an_error_here(talk: Any) -> None:
    one = talk()
    broken: Future[Any] = Future()
    broken.set_exception(BadRequest("no such grammar", field="format"))
    with pytest.raises(BadRequest, match="no such grammar"):
        one.ask([], constraint=Constraint(one.settings, [END], len(one.prompt), broken))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_it_answers_alike_in_any_order(tokenizer: Any, grammars: Grammars, data: st.DataObject) -> None:
    """A function of the tokens so far: what was asked before, further on or on another branch, is no
    matter."""
    one = Talk(tokenizer, grammars, format=JSON)
    texts = ['{"a": [1, 2], "b": "x"}', '{"a": [true], "c": {"d": null}}', '{"b": "y\\n"}']
    spelled = [[one.id(letter) for letter in text] for text in texts]
    places = st.sampled_from([tokens[:n] for tokens in spelled for n in range(len(tokens) + 1)])
    for said in data.draw(st.lists(places, min_size=1, max_size=12)):
        assert mx.array_equal(one.ask(said), one.ask(said, constraint=one.fresh()))
