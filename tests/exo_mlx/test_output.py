"""Output with Qwen3's own tokenizer: every token in the right event, whatever the model writes (B45)."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
from exocli import Reasoning, Text, ToolCall
from hypothesis import given
from hypothesis import strategies as st

from tests.exo_mlx.saying import TIME, WEATHER, Said, pieces, say

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
CUTS = st.lists(st.integers(0, 1 << 16), max_size=12)
ROME = ("weather", {"city": "Rome"})

# ------------------------------------------------------------------------------------------- thinking


def test_a_thought_and_an_answer(qwen3: Any) -> None:
    said = say(qwen3, "<think>\nHmm, they greet me.\n</think>\n\nHello there.")
    assert (said.thought, said.text, said.reason) == ("Hmm, they greet me.", "Hello there.", "stop")
    assert said.order == ["reasoning", "text"]
    tokens = qwen3.encode("<think>\nHmm, they greet me.\n</think>", add_special_tokens=False)
    assert said.reasoning_tokens == len(tokens)


def test_a_thought_that_the_prompt_opened(qwen3: Any) -> None:
    said = say(qwen3, "Hmm.\n</think>\n\nHello.", state="reasoning")
    assert (said.thought, said.text) == ("Hmm.", "Hello.")


@pytest.mark.parametrize("reason", ["length", "cancelled"])
@pytest.mark.parametrize("reply", ["<think>\nHmm, they", "<think>\nHmm, they\n", "<think>\nHmm, they</thi"])
def test_a_thought_that_is_cut_stays_one(qwen3: Any, reply: str, reason: str) -> None:
    said = say(qwen3, reply, reason)
    assert (said.text, said.reason) == ("", reason)
    assert said.thought == reply.removeprefix("<think>\n").rstrip()
    assert said.reasoning_tokens == said.tokens


def test_an_empty_thought_is_none(qwen3: Any) -> None:
    said = say(qwen3, "<think>\n\n</think>\n\nYes.")
    assert (said.order, said.text) == (["text"], "Yes.")


@pytest.mark.parametrize(
    "reply",
    [
        "Write <think> before and </think> after it.",
        "</think> ends it",
        "a < b <think",
        "Say <think>this</think>, \n\n please",
    ],
)
def test_a_tag_in_prose_is_text(qwen3: Any, reply: str) -> None:
    assert say(qwen3, reply).text == reply


def test_a_tag_in_the_answer_after_a_thought_is_text(qwen3: Any) -> None:
    said = say(qwen3, "<think>easy</think>The tag is <think>x</think>.")
    assert (said.thought, said.text) == ("easy", "The tag is <think>x</think>.")


def test_a_tag_at_the_beginning_of_what_is_continued_is_text(qwen3: Any) -> None:
    said = say(qwen3, "<think> and </think>", continuing=True)
    assert (said.thought, said.text) == ("", "<think> and </think>")


def test_a_completion_is_raw(qwen3: Any) -> None:
    reply = f"\n<think>\nx\n</think>\n{CALL}"
    assert say(qwen3, reply, state=None).text == reply


def test_a_model_without_thinking_has_no_tags(qwen3: Any) -> None:
    plain = copy.copy(qwen3)
    plain._think_start = plain._think_end = None
    assert say(plain, "<think>x</think>y").text == "<think>x</think>y"


# --------------------------------------------------------------------------------------- stop strings


def test_a_stop_string_is_for_the_answer_alone(qwen3: Any) -> None:
    said = say(qwen3, "<think>\nSTOP or\n\nnot\n</think>\n\nsay STOP now", stop=["STOP", "\n\n"])
    assert (said.thought, said.text) == ("STOP or\n\nnot", "say ")
    assert (said.stop, said.reason) == ("STOP", "stop")


def test_a_stop_string_does_not_fire_in_a_call(qwen3: Any) -> None:
    said = say(qwen3, CALL + "\nDone. END", stop=["Zürich", "}", "END"], tools=[WEATHER])
    assert said.calls == [("weather", {"city": "Zürich"})]
    assert (said.text, said.stop, said.reason) == ("Done. ", "END", "tool_calls")


def test_what_a_stop_string_held_back_comes_before_the_call(qwen3: Any) -> None:
    said = say(qwen3, "Look:\n" + CALL, stop=["\nEND"], tools=[WEATHER])
    assert said.order == ["text", "tool_call"]
    assert said.text == "Look:\n"


def test_a_stop_string_in_what_was_no_call_after_all(qwen3: Any) -> None:
    said = say(qwen3, "<tool_call>\nno call END of it\n</tool_call>", stop=["END"], tools=[WEATHER])
    assert (said.text, said.stop) == ("<tool_call>\nno call ", "END")


# ---------------------------------------------------------------------------------------------- calls


def test_a_call(qwen3: Any) -> None:
    said = say(qwen3, CALL, tools=[WEATHER])
    assert said.calls == [("weather", {"city": "Zürich"})]
    assert (said.text, said.reason, said.order) == ("", "tool_calls", ["tool_call"])


def test_several_calls_after_a_thought_and_a_word(qwen3: Any) -> None:
    time = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
    said = say(qwen3, f"<think>\nBoth.\n</think>\n\nI look.\n{CALL}\n{time}", tools=[WEATHER, TIME])
    assert said.calls == [("weather", {"city": "Zürich"}), ("time", {})]
    assert said.order == ["reasoning", "text", "tool_call"]
    assert said.text == "I look.\n"
    ids = [event.call_id for event in said.events if isinstance(event, ToolCall)]
    assert len(set(ids)) == 2
    assert all(len(one) == 9 and one.isalnum() for one in ids)


def test_a_call_whose_end_tag_the_model_forgot(qwen3: Any) -> None:
    said = say(qwen3, CALL.removesuffix("\n</tool_call>"), tools=[WEATHER])
    assert (said.calls, said.reason) == ([("weather", {"city": "Zürich"})], "tool_calls")


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_a_call_that_is_cut_is_text(qwen3: Any, reason: str) -> None:
    cut = '<tool_call>\n{"name": "weather", "argu'
    said = say(qwen3, CALL + "\n" + cut, reason, tools=[WEATHER])
    assert said.calls == [("weather", {"city": "Zürich"})]
    assert (said.text, said.reason) == (cut, reason)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "7",
        '"weather"',
        '{"arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": "weather", "arguments": [1]}',
        '{"name": "weather", "arguments": "Rome"}',
        '{"name": "weather", "arguments": {}} {}',
    ],
)
def test_a_malformed_call_is_text(qwen3: Any, body: str) -> None:
    reply = f"Well: <tool_call>\n{body}\n</tool_call> so."
    said = say(qwen3, reply, tools=[WEATHER])
    assert (said.calls, said.text, said.reason) == ([], reply, "stop")


def test_arguments_in_other_forms(qwen3: Any) -> None:
    bodies = [
        '{"name": "weather", "parameters": {"city": "Rome"}}',
        '{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}',
        '{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}',
        '[{"name": "weather", "arguments": {"city": "Rome"}}]',
    ]
    for body in bodies:
        assert say(qwen3, f"<tool_call>{body}</tool_call>", tools=[WEATHER]).calls == [ROME], body
    two = f"<tool_call>[{bodies[0]}, {bodies[1]}]</tool_call>"
    assert say(qwen3, two, tools=[WEATHER]).calls == [ROME, ROME]


FORMATS = [
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]weather[ARGS]{"city": "Rome"}', 2),
    ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}]', 1),
    ("pythonic", '<|tool_call_start|>[weather(city="Rome")]<|tool_call_end|>', 1),
    (
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        1,
    ),
    ("glm47", "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>", 1),
    ("gemma4", '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>', 1),
]


def with_parser(tokenizer: Any, name: str) -> Any:
    parser = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    changed = copy.copy(tokenizer)
    changed._tool_parser = parser.parse_tool_call
    changed._tool_call_start, changed._tool_call_end = parser.tool_call_start, parser.tool_call_end
    return changed


@pytest.mark.parametrize(("name", "reply", "count"), FORMATS)
def test_calls_in_the_formats_of_other_models(qwen3: Any, name: str, reply: str, count: int) -> None:
    tokenizer = with_parser(qwen3, name)
    said = say(tokenizer, f"<think>ok</think>\n\nI look. {reply}", tools=[WEATHER])
    assert (said.calls, said.text, said.reason) == ([ROME] * count, "I look. ", "tool_calls")
    cut = say(tokenizer, reply[: len(reply) // 3], "length", tools=[WEATHER])
    assert cut.text.startswith(reply[:10])
    assert (cut.calls, cut.reason) == ([], "length")


def test_a_whole_call_of_a_format_without_an_end_at_the_limit(qwen3: Any) -> None:
    said = say(with_parser(qwen3, "mistral"), FORMATS[0][1], "length", tools=[WEATHER])
    assert (said.calls, said.reason) == ([ROME, ROME], "length")


def test_without_tools_a_call_is_text(qwen3: Any) -> None:
    assert say(qwen3, CALL).text == CALL


def test_a_tag_that_a_thought_mentions(qwen3: Any) -> None:
    said = say(qwen3, f"<think>\nI write <tool_call> then.\n</think>\n\n{CALL}", tools=[WEATHER])
    assert said.thought == "I write <tool_call> then."
    assert said.calls == [("weather", {"city": "Zürich"})]


def test_a_call_in_a_thought_that_was_not_closed(qwen3: Any) -> None:
    said = say(qwen3, f"<think>\nI look.\n{CALL}", tools=[WEATHER])
    assert (said.thought, said.calls) == ("I look.", [("weather", {"city": "Zürich"})])


def test_a_think_tag_in_arguments_stays_there(qwen3: Any) -> None:
    reply = '<tool_call>{"name": "weather", "arguments": {"city": "<think></think>"}}</tool_call>'
    assert say(qwen3, reply, tools=[WEATHER]).calls == [("weather", {"city": "<think></think>"})]


# -------------------------------------------------------------------------------- calls without tags


@pytest.mark.parametrize(
    "reply",
    [
        '{"name": "weather", "arguments": {"city": "Rome"}}',
        '  {"name":"weather","parameters":{"city":"Rome"}}\n',
        '```json\n{"name": "weather", "arguments": {"city": "Rome"}}\n```',
        '```\n[{"name": "weather", "arguments": {"city": "Rome"}}]\n```',
        '{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}',
        '{"arguments": {"city": "Rome"}, "name": "weather"}',
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Rome"}}',
    ],
)
def test_bare_and_fenced_json(qwen3: Any, reply: str) -> None:
    said = say(qwen3, reply, tools=[TIME, WEATHER])
    assert (said.calls, said.text, said.reason) == ([ROME], "", "tool_calls")


def test_several_bare_calls_after_a_thought(qwen3: Any) -> None:
    one = '{"name": "weather", "parameters": {"city": "Rome"}}'
    said = say(qwen3, f"<think>ok</think>\n\n{one}; {one}\n{one}", tools=[WEATHER])
    assert (said.thought, said.calls, said.text) == ("ok", [ROME] * 3, "")


@pytest.mark.parametrize(
    "reply",
    [
        '{"name": "Bob", "age": 3}',
        '{"name": "weathers", "arguments": {}}',
        '{"name": "weather", "arguments": {"city": "Rome"}} is what I would call.',
        'Use {"name": "weather", "arguments": {"city": "Rome"}}',
        '{"name": "weather", "arguments": {"city": "Rome"}',
        "```python\nprint()\n```",
        "```",
        "[",
    ],
)
def test_other_json_is_text(qwen3: Any, reply: str) -> None:
    said = say(qwen3, reply, tools=[WEATHER])
    assert (said.calls, said.text, said.reason) == ([], reply, "stop")


def test_bare_json_is_text_where_no_tools_were_offered_or_it_was_cut(qwen3: Any) -> None:
    reply = '{"name": "weather", "arguments": {"city": "Rome"}}'
    assert say(qwen3, reply).text == reply
    assert say(qwen3, reply, "length", tools=[WEATHER]).text == reply


def test_code_streams_though_it_is_fenced(qwen3: Any) -> None:
    said = say(qwen3, "```python\nfor i in range(9):\n    print(i)\n```", tools=[WEATHER])
    assert len([event for event in said.events if isinstance(event, Text)]) > 8


# ------------------------------------------------------------------------------------------- logprobs


def tokens_of(said: Said) -> str:
    entries = [entry for event in said.events if isinstance(event, Text) for entry in event.logprobs or ()]
    return "".join(entry["token"] for entry in entries)


@pytest.mark.parametrize("stop", [[], ["Zürich", "\nEND"]])
def test_logprobs_are_of_the_answer(qwen3: Any, stop: list[str]) -> None:
    bad = "<tool_call>\nno\n</tool_call>"
    reply = f"<think>\nHmm 🎈.\n</think>\n\nIt is a 🎈.\n{CALL}\n{bad}, so."
    said = say(qwen3, reply, tools=[WEATHER], logprobs=True, stop=stop)
    assert said.text == f"It is a 🎈.\n{bad}, so."
    entries = [e["token"] for event in said.events if isinstance(event, Text) for e in event.logprobs or ()]
    expected = [*qwen3.encode("It is a 🎈.\n"), *qwen3.encode(f"{bad}, so.")]
    assert entries == [qwen3.decode([token]) for token in expected]


def test_logprobs_of_a_stop_string_are_told(qwen3: Any) -> None:
    said = say(qwen3, "say STOP now", logprobs=True, stop=["STOP"])
    assert (said.text, tokens_of(said)) == ("say ", "say STOP")


# ------------------------------------------------------------------------------------- however it is cut


@given(cuts=CUTS)
def test_the_cuts_between_tokens_do_not_matter(qwen3: Any, cuts: list[int]) -> None:
    reply = f"<think>\nHmm <b> 🎈.\n</think>\n\nI <think> look.\n{CALL}\n{CALL} and </tool_call>"
    said = say(qwen3, pieces(qwen3, reply, cuts), tools=[WEATHER], stop=["\nEND", "</x>"])
    assert said.thought == "Hmm <b> 🎈."
    assert said.text == "I <think> look.\nand </tool_call>"
    assert said.calls == [("weather", {"city": "Zürich"})] * 2


TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL]
PARTS = st.lists(st.sampled_from([*TAGS, "<", "th", "{", "\n", " ", "ab", "🎈"]), max_size=12)


def packed(text: str) -> str:
    return "".join(text.split())


@given(parts=PARTS, cuts=CUTS)
def test_nothing_is_lost(qwen3: Any, parts: list[str], cuts: list[int]) -> None:
    reply = "x" + "".join(parts)
    tokens = pieces(qwen3, reply, cuts)
    assert say(qwen3, tokens).text == reply
    said = say(qwen3, tokens, "cancelled", tools=[WEATHER])
    assert not said.thought
    assert len(packed(said.text)) + len(said.calls) * len(packed(CALL)) == len(packed(reply))


@given(parts=PARTS, cuts=CUTS, stop=st.sampled_from(["ab", "thab"]))
def test_no_part_of_a_stop_string_is_shown(qwen3: Any, parts: list[str], cuts: list[int], stop: str) -> None:
    said = say(qwen3, pieces(qwen3, "".join(parts), cuts), tools=[WEATHER], stop=[stop])
    assert stop not in said.text
    assert (said.stop is None) or said.reason in ("stop", "tool_calls")
    shown = [event.text for event in said.events if isinstance(event, Text | Reasoning)]
    assert all(shown)
