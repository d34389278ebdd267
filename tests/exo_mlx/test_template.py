"""ChatTemplate with Qwen3's tokenizer and other models' templates: what reaches the prompt, and how (B46)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from exocli import BadRequest, Message, ModelBroken, Part, Request, ToolUse

from exo_mlx import template
from exo_mlx.template import ChatTemplate, Rendered
from tests.exo_mlx.saying import WEATHER

HI = Message(role="user", content="Hi")
OPENING = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
OPENS_A_THOUGHT = OPENING + "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
JOINS_ARGUMENTS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}\n"
    "{% endfor %}"
)


def with_template(tokenizer: Any, template: str | None) -> Any:
    changed = copy.copy(tokenizer)
    changed._tokenizer = copy.copy(tokenizer._tokenizer)
    changed._tokenizer.chat_template = template
    changed.has_chat_template = template is not None
    return changed


def render(tokenizer: Any, *messages: Message, **fields: Any) -> Rendered:
    return ChatTemplate(tokenizer, "model").render(Request(messages=messages, **fields))


# ------------------------------------------------------------------------------------------- no end


def test_a_template_that_comes_to_no_end(qwen3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "LIMIT_S", 0.1)
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(
        BadRequest, match=r"comes to no end with these messages \(it was not done after 0.1 s\)"
    ):
        render(with_template(qwen3, loops), HI)
    with pytest.raises(ModelBroken, match=r"comes to no end .* -o chat_template=FILE"):
        ChatTemplate(with_template(qwen3, loops), "model").takes_tools()
    assert render(with_template(qwen3, "fine"), HI).text == "fine"


# ------------------------------------------------------------------------------------------- thinking


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, True),
        ({"reasoning": True}, True),
        ({"reasoning": "low"}, True),
        ({"reasoning": False}, False),
        ({"reasoning": "none"}, False),
        ({"reasoning": True, "template_kwargs": {"enable_thinking": False}}, False),
    ],
)
def test_thinking_on_and_off(qwen3: Any, fields: dict[str, Any], thinks: bool) -> None:
    rendered = render(qwen3, HI, **fields)
    assert rendered.text.endswith("assistant\n" if thinks else "<think>\n\n</think>\n\n")
    assert not rendered.thinking  # Qwen3 opens its thought itself


def test_an_effort_reaches_a_template_that_knows_efforts(qwen3: Any) -> None:
    tokenizer = with_template(qwen3, "{{ reasoning_effort | default('medium') }}")
    assert render(tokenizer, HI, reasoning="high").text == "high"
    assert render(tokenizer, HI, reasoning=True).text == "medium"


def test_a_prompt_that_ends_inside_a_thought(qwen3: Any) -> None:
    tokenizer = with_template(qwen3, OPENS_A_THOUGHT)
    assert render(tokenizer, HI) == Rendered("user: Hi\nassistant: <think>\n", thinking=True)


def test_a_thought_that_the_template_opens_is_closed_where_none_is_wanted(qwen3: Any) -> None:
    rendered = render(with_template(qwen3, OPENS_A_THOUGHT), HI, reasoning=False)
    assert rendered == Rendered("user: Hi\nassistant: <think>\n\n</think>\n\n", thinking=False)


def test_a_tag_in_a_message_opens_no_thought(qwen3: Any) -> None:
    assert not render(qwen3, Message(role="user", content="What does <think> mean?")).thinking


def test_earlier_thoughts_reach_the_template(qwen3: Any) -> None:
    call = ToolUse(id="1", name="weather", arguments='{"city": "Rome"}')
    thought = Message(role="assistant", tool_calls=(call,), reasoning="I look it up.")
    text = render(qwen3, HI, thought, Message(role="tool", content="sunny", tool_call_id="1")).text
    assert "<think>\nI look it up.\n</think>" in text


# ----------------------------------------------------------------------------------------- continuing


def test_an_answer_is_continued(qwen3: Any) -> None:
    rendered = render(qwen3, HI, Message(role="assistant", content="Hello, my"), continue_last=True)
    assert rendered.text.endswith("Hello, my")
    assert not rendered.thinking


@pytest.mark.parametrize("content", [None, ""])
def test_a_thought_that_was_cut_is_continued(qwen3: Any, content: str | None) -> None:
    cut = Message(role="assistant", content=content, reasoning="Hmm, they")
    rendered = render(qwen3, HI, cut, continue_last=True)
    assert rendered.text.endswith("<|im_start|>assistant\n<think>\nHmm, they")
    assert rendered.thinking
    opening = render(with_template(qwen3, OPENS_A_THOUGHT), HI, cut, continue_last=True)
    assert opening == Rendered("user: Hi\nassistant: <think>\nHmm, they", thinking=True)


def test_a_thought_is_not_continued_where_none_is_wanted(qwen3: Any) -> None:
    cut = Message(role="assistant", content="", reasoning="Hmm, they")
    rendered = render(qwen3, HI, cut, continue_last=True, reasoning=False)
    assert rendered == render(qwen3, HI, reasoning=False)


def test_only_an_assistant_is_continued(qwen3: Any) -> None:
    with pytest.raises(BadRequest, match="Only an assistant's message"):
        render(qwen3, HI, continue_last=True)


def test_without_the_opening(qwen3: Any) -> None:
    whole = render(qwen3, HI).text
    before = ChatTemplate(qwen3, "model").render(Request(messages=(HI,)), opening=False)
    assert before == Rendered(whole.removesuffix("<|im_start|>assistant\n"))


# ---------------------------------------------------------------------------------------------- tools


def test_tools_reach_the_prompt_unless_none_is_to_be_called(qwen3: Any) -> None:
    assert '"name": "weather"' in render(qwen3, HI, tools=(WEATHER,)).text
    assert render(qwen3, HI, tools=(WEATHER,), tool_choice="none") == render(qwen3, HI)


@pytest.mark.parametrize(
    ("template", "takes"),
    [
        (OPENING, False),
        (OPENING + "{{ tools }}", True),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + OPENING, False),
        (None, False),
    ],
)
def test_whether_a_template_takes_tools(qwen3: Any, template: str | None, takes: bool) -> None:
    assert ChatTemplate(with_template(qwen3, template), "model").takes_tools() is takes
    assert ChatTemplate(qwen3, "model").takes_tools()


@pytest.mark.parametrize("tool", [{}, {"function": "weather"}, {"function": {"description": "no name"}}])
def test_a_tool_without_a_name(qwen3: Any, tool: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"tools\[1\] has no function with a name"):
        render(qwen3, HI, tools=(WEATHER, tool))


def history(arguments: str) -> Sequence[Message]:
    call = ToolUse(id="1", name="weather", arguments=arguments)
    turn = Message(role="assistant", tool_calls=(call,))
    return HI, turn, Message(role="tool", content="sunny", tool_call_id="1", name="weather")


def test_a_call_and_its_result_in_the_history(qwen3: Any) -> None:
    text = render(qwen3, *history('{"city":"Rome"}')).text
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>' in text
    assert "<tool_response>\nsunny\n</tool_response>" in text


def test_arguments_are_an_object_for_the_template_and_text_where_it_wants_text(qwen3: Any) -> None:
    objects = with_template(qwen3, "{{ (messages[1].tool_calls[0].function.arguments).city }}")
    assert render(objects, *history('{"city":"Rome"}')).text == "Rome"
    texts = with_template(qwen3, JOINS_ARGUMENTS)
    assert 'assistant: weather({"city":"Rome"})' in render(texts, *history('{"city":"Rome"}')).text


@pytest.mark.parametrize(("arguments", "shown"), [("", "{}"), ("not JSON", "not JSON"), ("[1]", "[1]")])
def test_arguments_that_are_no_object(qwen3: Any, arguments: str, shown: str) -> None:
    assert f'"arguments": {shown}}}' in render(qwen3, *history(arguments)).text


def test_a_template_that_refuses_says_why(qwen3: Any) -> None:
    refusing = with_template(qwen3, "{{ raise_exception('roles must alternate') }}")
    for messages in ([HI], history("{}")):
        with pytest.raises(BadRequest, match=r"chat template of model refuses .*: roles must alternate"):
            render(refusing, *messages)


# --------------------------------------------------------------------------------------- other content


@pytest.mark.parametrize(
    ("content", "text"),
    [((Part(text="a"), Part(text="b"), Part(text="c")), "abc"), ((), ""), ("", "")],
)
def test_content_in_parts(qwen3: Any, content: Any, text: str) -> None:
    rendered = render(qwen3, Message(role="user", content=content))
    assert f"<|im_start|>user\n{text}<|im_end|>" in rendered.text


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_no_content(qwen3: Any, role: Any) -> None:
    with pytest.raises(BadRequest, match=rf"messages\[0\] \({role}\) has no content"):
        render(qwen3, Message(role=role))


def test_a_developer_is_the_system(qwen3: Any) -> None:
    developer, system = (Message(role=role, content="Be brief.") for role in ("developer", "system"))
    assert render(qwen3, developer, HI) == render(qwen3, system, HI)


def test_no_messages_and_no_template(qwen3: Any) -> None:
    with pytest.raises(BadRequest, match="no messages"):
        render(qwen3)
    with pytest.raises(BadRequest, match="no chat template"):
        render(with_template(qwen3, None), HI)
