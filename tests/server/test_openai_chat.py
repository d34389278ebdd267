"""Chat Completions over real sockets: stream and not, every field, every error in OpenAI's shape."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.server.serving import Serving, chat, data_of

PATH = "/v1/chat/completions"


def stream(server: Serving, body: dict[str, Any], **more: Any) -> list[Any]:
    with (
        server.client() as client,
        client.stream("POST", PATH, json={**body, "stream": True}, **more) as reply,
    ):
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        return list(data_of(reply.iter_lines()))


def text_of(chunks: list[Any]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


def script(*events: list[Any]) -> str:
    return json.dumps(events)


def test_whole_and_streamed_say_the_same(server: Serving):
    whole = server.post(PATH, chat("one two  three")).json()
    chunks = stream(server, chat("one two  three"))
    assert whole["choices"][0]["message"]["content"] == "one two  three" == text_of(chunks)
    assert whole["choices"][0]["finish_reason"] == "stop" == chunks[-1]["choices"][0]["finish_reason"]
    assert whole["usage"]["prompt_tokens"] == 3
    assert whole["usage"]["total_tokens"] == 6


def test_the_id_is_known_before_the_first_token_and_the_client_may_choose_it(server: Serving):
    chosen = server.post(PATH, chat("hi"), headers={"X-Request-Id": "mine-1"})
    assert chosen.headers["x-request-id"] == "mine-1"
    assert chosen.json()["id"] == "chatcmpl-mine-1"
    refused = server.post(PATH, chat("hi"), headers={"X-Request-Id": "not / mine"})
    assert refused.headers["x-request-id"] != "not / mine"


@pytest.mark.parametrize(
    ("options", "last_has_usage", "others_have"),
    [(None, False, False), ({"include_usage": False}, False, False), ({"include_usage": True}, True, True)],
)
def test_usage_is_streamed_only_when_asked_for(
    server: Serving, options: Any, last_has_usage: bool, others_have: bool
):
    chunks = stream(server, chat("a b", stream_options=options))
    assert ("usage" in chunks[0]) is others_have
    if last_has_usage:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 2
    else:
        assert not any(c.get("usage") for c in chunks)


def test_length_stop_and_stop_strings(server: Serving):
    cut = server.post(PATH, chat("a b c d", max_tokens=2)).json()["choices"][0]
    assert (cut["finish_reason"], cut["message"]["content"]) == ("length", "a b ")
    stopped = server.post(PATH, chat("a b c d", stop="c")).json()["choices"][0]
    assert (stopped["finish_reason"], stopped["message"]["content"]) == ("stop", "a b ")


def test_tools_and_reasoning(server: Serving):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    said = script(["reasoning", "hm "], ["text", "so"], ["tool", "look", '{"at": 1}'], ["tool", "look", "{}"])
    message = server.post(PATH, chat(said, tools=tools)).json()["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    assert message["message"]["reasoning_content"] == "hm "
    assert [c["function"]["arguments"] for c in message["message"]["tool_calls"]] == ['{"at": 1}', "{}"]
    deltas = [c["choices"][0]["delta"] for c in stream(server, chat(said, tools=tools))]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [(c["index"], c["id"], c["function"]["name"]) for c in calls] == [
        (0, "call_0", "look"),
        (1, "call_1", "look"),
    ]


def test_logprobs_have_openais_shape_and_no_infinities(server: Serving):
    body = chat("hé ho", logprobs=True, top_logprobs=2)
    content = server.post(PATH, body).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["hé ", "ho"]
    assert content[0]["bytes"] == list("hé ".encode())
    assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -9999.0]
    streamed = stream(server, body)[-2]["choices"][0]["logprobs"]["content"]
    assert streamed[0]["token"] == "ho"


def test_content_in_its_many_forms(server: Serving):
    parts = [{"type": "text", "text": piece} for piece in ("one ", "two ", "three")]
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
        {"role": "user", "content": parts},
    ]
    answer = server.post(PATH, {"messages": messages}).json()
    assert answer["choices"][0]["message"]["content"] == "one two three"
    assert answer["usage"]["prompt_tokens"] == 5
    empty = server.post(PATH, {"messages": []})
    assert empty.status_code == 400
    assert empty.json()["error"]["message"].startswith("messages")


def test_an_image_reaches_the_engine_as_a_file_and_goes_with_the_request(server: Serving):
    data = base64.b64encode(b"x" * 77).decode()
    parts = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    ]
    answer = server.post(PATH, {"messages": [{"role": "user", "content": parts}]})
    assert answer.json()["choices"][0]["message"]["content"] == "see <image/png 77>"
    remote = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/cat.png"}}]
    refused = server.post(PATH, {"messages": [{"role": "user", "content": remote}]})
    assert refused.status_code == 400
    assert "fetches nothing" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("n", 0),
        ("n", 2),
        ("top_logprobs", 2),
        ("temperature", -1),
        ("top_p", 1.5),
        ("seed", "x"),
        ("stop", [""]),
        ("logit_bias", {"word": 1}),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
        ("tools", [{"type": "web_search"}]),
        ("functions", [{"name": "f"}]),
        ("audio", {"voice": "alloy"}),
        ("web_search_options", {}),
        ("modalities", ["audio"]),
        ("timeout", 0),
    ],
)
def test_what_cannot_be_honoured_is_a_400_that_names_the_field(server: Serving, field: str, value: Any):
    answer = server.post(PATH, chat("hi", **{field: value}))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith(field)
    assert error["message"].startswith(field)
    assert error["type"] == "invalid_request_error"
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": None},
        {"max_tokens": 1e9},
        {"n": 1},
        {"logit_bias": {}},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"response_format": {"type": "text"}},
        {"tool_choice": "auto"},
        {"user": "me", "store": False, "metadata": {"a": 1}, "never_heard_of": [1]},
    ],
)
def test_what_asks_for_nothing_is_no_error(server: Serving, more: dict[str, Any]):
    assert server.post(PATH, chat("hi", **more)).json()["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": NaN}',
        b'"\xff"',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b"[" * 5000,
    ],
)
def test_a_body_that_is_no_request(server: Serving, raw: bytes):
    with server.client() as client:
        answer = client.post(PATH, content=raw)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_request"


def test_an_unknown_model_lists_the_known_ones_and_a_path_is_never_one(server: Serving):
    for name in ("gpt-4", "./secret", "/etc/passwd", "scripted/../x"):
        answer = server.post(PATH, chat("hi", model=name))
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert "this server has: scripted" in answer.json()["error"]["message"]
    for name in ("scripted", "scripted:latest", "", None):
        assert server.post(PATH, chat("hi", model=name)).status_code == 200


def test_over_the_context_is_a_400_with_both_counts_before_the_first_byte(server: Serving):
    for more in ({}, {"stream": True}):
        answer = server.post(PATH, chat("w " * 5001, **more))
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["details"] == {"prompt_tokens": 5001, "context": 5000}
        assert "prompt is too long. The prompt has 5001 tokens" in error["message"]


def test_progress_is_a_comment_or_on_request_a_chunk(server: Serving):
    with server.client() as client:
        plain = client.post(PATH, json=chat("a b c", stream=True)).text
        assert ': prefill_progress {"model": "scripted", "processed_tokens": 3, "total_tokens": 3' in plain
        assert "prompt_progress" not in plain
    chunks = stream(server, chat("a b c", return_progress=True))
    progress = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
    assert [p["processed"] for p in progress] == [1, 2, 3]
    assert progress[-1]["total"] == 3
    assert {"cache", "time_ms"} <= progress[-1].keys()


@pytest.mark.parametrize(
    "text",
    ["a\u2028b\u2029c", "line\r\nnext\rlast\n", "🤷‍♀️ ok", "tab\tnul\u0000 end", 'quote " back \\ slash'],
)
def test_any_text_survives_the_wire(server: Serving, text: str):
    said = script(*(["text", piece] for piece in (text[:2], text[2:])))
    assert text_of(stream(server, chat(said))) == text
    assert server.post(PATH, chat(said)).json()["choices"][0]["message"]["content"] == text
