"""A real engine on a qwen3 that says what it is told to: thoughts, calls and tool_choice, to the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exocli import BadRequest, Event, Finished, Message, Reasoning, Text, ToolCall

from tests.exo_mlx import scripted
from tests.exo_mlx.conftest import npm_tokenizer
from tests.exo_mlx.kinds import Driver
from tests.exo_mlx.saying import TIME
from tests.server.serving import Serving

HI = (Message(role="user", content="Hi"),)
CITY = {"enum": ["Rome", "Oslo"]}
PLACE = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
CHOSEN = {"type": "function", "function": {"name": "place", "parameters": PLACE}}
NOW = {"type": "object", "properties": {}, "additionalProperties": False}
CLOCK = {"type": "function", "function": {"name": "time", "parameters": NOW}}


@pytest.fixture(scope="module")
def folder(qwen3: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scripted.write(tmp_path_factory.mktemp("says") / "qwen3", npm_tokenizer("qwen3"), qwen3)


@pytest.fixture(scope="module")
def driver(folder: Path) -> Iterator[Driver]:
    opened = Driver(folder, chunk=64)
    yield opened
    opened.engine.close()


def ask(driver: Driver, max_tokens: int = 40, **fields: Any) -> list[Event]:
    fields = {"messages": HI, "logprobs": None, **fields}
    request = driver.start("", max_tokens, **fields)
    driver.run(request)
    return driver.events[request]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def thought(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Reasoning))


def calls(events: list[Event]) -> list[tuple[str, Any]]:
    return [(event.name, json.loads(event.arguments)) for event in events if isinstance(event, ToolCall)]


def finished(events: list[Event]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


def test_it_tells_that_its_template_takes_tools_and_that_it_thinks(driver: Driver) -> None:
    assert driver.engine.capabilities.tools and driver.engine.capabilities.reasoning


def test_a_thought_then_an_answer(driver: Driver) -> None:
    events = ask(driver, logprobs=0)
    assert (thought(events), text(events)) == ("Hmm sure.", "Hello there!")
    end = finished(events)
    assert (end.reason, end.usage.completion_tokens, end.usage.reasoning_tokens) == ("stop", 8, 5)
    entries = [e["token"] for event in events if isinstance(event, Text) for e in event.logprobs or ()]
    assert entries == ["Hello", " there", "!"]


def test_a_thought_cut_by_the_limit(driver: Driver) -> None:
    events = ask(driver, max_tokens=3)
    assert (thought(events), text(events), finished(events).reason) == ("Hmm sure", "", "length")
    assert finished(events).usage.reasoning_tokens == 3


def test_a_thought_cut_by_a_cancel_and_gone_on_with(driver: Driver) -> None:
    request = driver.start("", 40, messages=HI, logprobs=None)
    while not any(isinstance(event, Reasoning) for event in driver.events[request]):
        driver.step()
    end = driver.cancel(request)
    said = thought(driver.events[request])
    assert (end.reason, text(driver.events[request])) == ("cancelled", "")
    assert "Hmm sure.".startswith(said)
    cut = Message(role="assistant", content="", reasoning=said)
    events = ask(driver, messages=(*HI, cut), continue_last=True)
    assert (said + thought(events), text(events)) == ("Hmm sure.", "Hello there!")


def test_a_stop_string(driver: Driver) -> None:
    events = ask(driver, stop=("sure", " there"))
    assert (thought(events), text(events)) == ("Hmm sure.", "Hello")
    assert (finished(events).reason, finished(events).stop) == ("stop", " there")


def test_a_call(driver: Driver) -> None:
    events = ask(driver, tools=(TIME,), reasoning=False)
    assert (calls(events), text(events)) == ([("time", {})], "")
    assert finished(events).reason == "tool_calls"


def test_a_call_cut_by_the_limit(driver: Driver) -> None:
    events = ask(driver, max_tokens=4, tools=(TIME,), reasoning=False)
    assert (calls(events), text(events)) == ([], '<tool_call>{"name":"')
    assert finished(events).reason == "length"


def test_two_at_once_do_not_mix(driver: Driver) -> None:
    fields = {"messages": HI, "logprobs": None}
    one = driver.start("", 40, **fields)
    two = driver.start("", 40, tools=(TIME,), reasoning=False, **fields)
    driver.run(one, two)
    assert text(driver.events[one]) == "Hello there!"
    assert calls(driver.events[two]) == [("time", {})]


@pytest.mark.parametrize("reasoning", [False, True])
def test_a_named_tool_is_called(driver: Driver, reasoning: bool) -> None:
    choice = {"type": "function", "function": {"name": "place"}}
    events = ask(driver, tools=(CLOCK, CHOSEN), tool_choice=choice, reasoning=reasoning)
    ((name, arguments),) = calls(events)
    assert (name, finished(events).reason, text(events)) == ("place", "tool_calls", "")
    assert arguments["city"] in ("Rome", "Oslo")
    assert thought(events) == ("Hmm sure." if reasoning else "")


def test_a_call_is_required(driver: Driver) -> None:
    events = ask(driver, tools=(CLOCK, CHOSEN), tool_choice="required")
    assert len(calls(events)) == 1
    assert (thought(events), finished(events).reason) == ("Hmm sure.", "tool_calls")


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ((), "required", "there are no tools"),
        (
            (TIME,),
            {"type": "function", "function": {"name": "tide"}},
            "names tide, but the tools are",
        ),
        ((TIME,), "always", "must be"),
        ((TIME,), {"type": "function"}, "must be"),
    ],
)
def test_a_choice_that_cannot_be(driver: Driver, tools: Any, choice: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as error:
        ask(driver, tools=tools, tool_choice=choice)
    assert error.value.details["field"] == "tool_choice"


def test_parameters_that_no_grammar_is_made_of(driver: Driver) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"type": "nothing"}}}
    with pytest.raises(BadRequest, match="tool_choice") as error:
        ask(driver, tools=(odd,), tool_choice="required")
    assert error.value.details["field"] == "tool_choice"


# ---------------------------------------------------------------------------------------- over HTTP

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("home"), "-m", str(folder), backend="mlx") as serving:
        yield serving


def post(server: Serving, path: str, **body: Any) -> Any:
    answer = server.post(path, {"max_tokens": 40, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_each_api_has_the_thought_in_its_own_place(server: Serving) -> None:
    chat = post(server, CHAT, messages=[USER])
    said = chat["choices"][0]["message"]
    assert (said["reasoning_content"], said["content"]) == ("Hmm sure.", "Hello there!")
    assert chat["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    claude = post(server, "/v1/messages", messages=[USER], model="qwen3")
    assert [(part["type"], part.get("thinking") or part["text"]) for part in claude["content"]] == [
        ("thinking", "Hmm sure."),
        ("text", "Hello there!"),
    ]
    llama = post(server, "/api/chat", messages=[USER], stream=False)
    assert (llama["message"]["thinking"], llama["message"]["content"]) == ("Hmm sure.", "Hello there!")
    response = post(server, "/v1/responses", input="Hi")
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]


def test_a_call_over_http(server: Serving) -> None:
    chat = post(server, CHAT, messages=[USER], tools=[TIME], reasoning_effort="none")
    (choice,) = chat["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "time", "arguments": "{}"}
    answered = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "noon"},
    ]
    again = post(server, CHAT, messages=answered, tools=[TIME])
    assert again["choices"][0]["message"]["content"] == "Hello there!"


@pytest.mark.parametrize("content", [[{"type": "text", "text": one} for one in "abc"], []])
def test_content_in_parts(server: Serving, content: list[Any]) -> None:
    chat = post(server, CHAT, messages=[{"role": "user", "content": content}])
    assert chat["choices"][0]["message"]["content"] == "Hello there!"


def test_a_choice_that_cannot_be_is_a_400(server: Serving) -> None:
    choice = {"type": "function", "function": {"name": "tide"}}
    odd = server.post(CHAT, {"messages": [USER], "tools": [TIME], "tool_choice": choice})
    assert (odd.status_code, odd.json()["error"]["param"]) == (400, "tool_choice")
