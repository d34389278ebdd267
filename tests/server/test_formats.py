"""Formats, penalties and logit_bias, as each API spells them, on their way to a Request. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from exocli import BadRequest, Sampling
from exocli.server import anthropic, ollama, openai_chat, openai_completions, openai_responses
from exocli.types import Request

Parse = Callable[[bytes], Any]
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
WANTED = {"type": "json_schema", "schema": SCHEMA}
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
CHAT: tuple[Parse, dict[str, Any]] = (openai_chat.parse_chat, MESSAGES)
COMPLETION: tuple[Parse, dict[str, Any]] = (openai_completions.parse_completion, {"prompt": "hi"})
RESPONSES: tuple[Parse, dict[str, Any]] = (openai_responses.parse_responses, {"input": "hi"})
ANTHROPIC: tuple[Parse, dict[str, Any]] = (anthropic.parse_messages, {**MESSAGES, "max_tokens": 9})
OLLAMA: tuple[Parse, dict[str, Any]] = (ollama.parse_chat, MESSAGES)
GENERATE: tuple[Parse, dict[str, Any]] = (ollama.parse_generate, {"prompt": "hi"})


def request(api: tuple[Parse, dict[str, Any]], more: dict[str, Any]) -> Request:
    parse, body = api
    found: Request = parse(json.dumps({"model": "m", **body, **more}).encode()).request
    return found


NAMED = {"name": "thing", "strict": True, "schema": SCHEMA}
FORMATS = [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": NAMED}}, {**WANTED, **NAMED}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, WANTED),
    (CHAT, {"response_format": {"type": "json_object"}}, {"type": "json_object"}),
    (CHAT, {"response_format": {"type": "text"}}, None),
    (CHAT, {"response_format": None}, None),
    (CHAT, {"response_format": {"type": "regex", "pattern": "a+"}}, {"type": "regex", "pattern": "a+"}),
    (
        CHAT,
        {"response_format": {"type": "grammar", "syntax": "gbnf", "grammar": "root ::= [a]"}},
        {"type": "grammar", "syntax": "gbnf", "grammar": "root ::= [a]"},
    ),
    (COMPLETION, {"response_format": {"type": "json_object"}}, {"type": "json_object"}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", **NAMED}}}, {**WANTED, **NAMED}),
    (RESPONSES, {"text": {"format": {"type": "json_object"}}}, {"type": "json_object"}),
    (RESPONSES, {"text": {"format": {"type": "text"}}}, None),
    (ANTHROPIC, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, WANTED),
    (ANTHROPIC, {"output_format": {"type": "json_schema", "schema": SCHEMA}}, WANTED),
    (ANTHROPIC, {}, None),
    (OLLAMA, {"format": "json"}, {"type": "json_object"}),
    (OLLAMA, {"format": SCHEMA}, WANTED),
    (OLLAMA, {"format": ""}, None),
    (GENERATE, {"format": SCHEMA}, WANTED),
]


@pytest.mark.parametrize(("api", "more", "wanted"), FORMATS)
def test_every_apis_format_is_the_same_one_inside(
    api: tuple[Parse, dict[str, Any]], more: dict[str, Any], wanted: Any
) -> None:
    found = request(api, more).format
    assert found == wanted
    if found and "schema" in found:  # the order of properties is the reply's
        assert list(found["schema"]["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("api", "more", "field"),
    [
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format"),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        (CHAT, {"response_format": {"type": "yaml"}}, "response_format"),
        (CHAT, {"response_format": {"type": "regex"}}, "response_format"),
        (CHAT, {"response_format": {"type": "grammar", "grammar": ""}}, "response_format"),
        (CHAT, {"response_format": "json"}, "response_format"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        (ANTHROPIC, {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        (OLLAMA, {"format": "xml"}, "format"),
        (CHAT, {"logit_bias": {"a": 1}}, "logit_bias"),
        (CHAT, {"repetition_penalty": 0}, "repetition_penalty"),
        (OLLAMA, {"options": {"repeat_penalty": -1}}, "options.repeat_penalty"),
    ],
)
def test_what_is_no_format_is_refused_by_name(
    api: tuple[Parse, dict[str, Any]], more: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        request(api, more)
    assert str(caught.value.details["field"]).startswith(field)


PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": -0.5}


@pytest.mark.parametrize(
    ("api", "more", "wanted"),
    [
        (
            CHAT,
            {**PENALTIES, "repetition_penalty": 1.1, "logit_bias": {"5": -100, "7": 2.5}},
            Sampling(**PENALTIES, repetition_penalty=1.1, logit_bias={5: -100.0, 7: 2.5}),
        ),
        (COMPLETION, {**PENALTIES, "logit_bias": {"5": 1}}, Sampling(**PENALTIES, logit_bias={5: 1.0})),
        (
            OLLAMA,
            {"options": {**PENALTIES, "repeat_penalty": 1.2}},
            Sampling(**PENALTIES, repetition_penalty=1.2),
        ),
        (GENERATE, {"options": {"repeat_penalty": 1.2}}, Sampling(repetition_penalty=1.2)),
        # A neutral value is an answer: it takes back what the config or the model says.
        (
            CHAT,
            {"repetition_penalty": 1, "presence_penalty": 0},
            Sampling(repetition_penalty=1.0, presence_penalty=0.0),
        ),
    ],
)
def test_penalties_arrive_as_they_are(
    api: tuple[Parse, dict[str, Any]], more: dict[str, Any], wanted: Sampling
) -> None:
    assert request(api, more).sampling == wanted
