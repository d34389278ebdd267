"""What holds for every API: stream and whole agree, errors have its shape, ids are known, ends are marked."""

from __future__ import annotations

import base64
import json
import re
from importlib.metadata import version
from typing import Any

import pytest
from exocli.errors import BadRequest, ModelBroken, WorkerDied, from_dict
from exocli.server.openai_responses import parse_responses
from exocli.server.problems import headers_of

from tests.server import apis
from tests.server.apis import ALL, ANTHROPIC, OLLAMA_CHAT, OLLAMA_GENERATE, RESPONSES, SSE, Api
from tests.server.serving import Serving
from tests.server.sse import parse

TEXTS = [
    "plain words here",
    "a\u2028b\u2029c\x85d",
    "line\r\nnext\rlast\n",
    "🤷‍♀️ é 漢字",
    'quote " back \\ </script>',
]
NAMES = {
    "chat": "openai.chat",
    "completions": "openai.completions",
    "responses": "openai.responses",
    "anthropic": "anthropic.messages",
    "ollama-chat": "ollama.chat",
    "ollama-generate": "ollama.generate",
}


@pytest.mark.parametrize("api", ALL, ids=repr)
def test_any_text_survives_streamed_and_whole(server: Serving, api: Api):
    for text in TEXTS:
        script = json.dumps([["text", piece] for piece in (text[:3], text[3:4], text[4:])])
        assert api.text_of(server.post(api.path, api.ask(script, stream=False)).json()) == text
        streamed = server.post(api.path, api.ask(script, stream=True))
        said, _, ended, _ = api.read_stream(streamed.content)
        assert said == text
        assert ended
        if api not in SSE:
            assert streamed.headers["content-type"].startswith("application/x-ndjson")


@pytest.mark.parametrize("api", ALL, ids=repr)
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([["text", "a"]], ("stop", "stop", "completed", "end_turn", "stop", "stop")),
        ([["text", "a"], ["stop", "END"]], ("stop", "stop", "completed", "stop_sequence", "stop", "stop")),
        ([["text", "a"]] * 9, ("length", "length", "incomplete", "max_tokens", "length", "length")),
    ],
)
def test_every_end_has_its_documented_reason(server: Serving, api: Api, script: Any, reason: tuple[str, ...]):
    limit: dict[str, Any] = {"options": {"num_predict": 5}} if "ollama" in api.name else {"max_tokens": 5}
    if api is RESPONSES:
        limit = {"max_output_tokens": 5}
    _, said, ended, receipt = api.read_stream(
        server.post(api.path, api.ask(json.dumps(script), stream=True, **limit)).content
    )
    assert (said, ended, receipt) == (reason[ALL.index(api)], True, None)


@pytest.mark.parametrize("api", ALL, ids=repr)
def test_errors_have_the_apis_own_shape(server: Serving, api: Api):
    for stream in (False, True):
        answer = server.post(api.path, api.ask("please refuse this", stream=stream))
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-should-retry"] == "false"
        assert api.message_of(answer.json()) == "This word is refused."
    unknown = server.post(api.path, api.ask("hi", stream=False, model="gpt-9"))
    assert unknown.status_code == 404
    assert "gpt-9" in api.message_of(unknown.json())
    assert api.message_of(server.post(api.path, {"model": 7}).json())
    assert server.get(api.path).status_code == 405


@pytest.mark.parametrize("api", ALL, ids=repr)
def test_a_step_that_raises_ends_the_stream_with_an_error_and_the_next_request_works(
    server: Serving, api: Api
):
    broken = json.dumps([["text", "half "], ["raise"]])
    whole = server.post(api.path, api.ask(broken, stream=False))
    assert whole.status_code == 500
    assert "the word was raise" in api.message_of(whole.json())
    assert "Traceback" not in whole.text
    said, _, _, _ = api.read_stream(server.post(api.path, api.ask("works again", stream=True)).content)
    assert said == "works again"
    raw = server.post(api.path, api.ask(broken, stream=True)).content
    if api in SSE:
        events = parse(raw)
        failures = [event for event in events if '"error":{' in event.data or event.type == "error"]
        assert failures, raw
        assert events.index(failures[-1]) >= len(events) - 2  # only [DONE] may follow
    else:
        assert "the word was raise" in json.loads(raw.decode().splitlines()[-1])["error"]
    assert "trace" not in raw.decode()


@pytest.mark.parametrize("api", ALL, ids=repr)
def test_the_body_has_the_headers_id(server: Serving, api: Api):
    answer = server.post(api.path, api.ask("hi", stream=False), headers={"X-Request-Id": f"mine-{api.name}"})
    assert answer.headers["x-request-id"] == f"mine-{api.name}"
    if api is ANTHROPIC:
        assert answer.headers["request-id"] == f"mine-{api.name}"  # what its client calls `request_id`
    if "id" in answer.json():
        assert re.fullmatch(rf"(chatcmpl-|cmpl-|resp_|msg_)mine-{api.name}", answer.json()["id"])
    label = f"api={NAMES[api.name]} "
    assert label in server.wait_log(f"id=mine-{api.name}")


@pytest.mark.parametrize("api", SSE, ids=repr)
def test_progress_is_a_comment_by_default_and_a_field_on_request(server: Serving, api: Api):
    comments: list[str] = []
    plain = parse(server.post(api.path, api.ask("a b c", stream=True)).content, comments)
    assert "prompt_progress" not in "".join(event.data for event in plain)
    found = [json.loads(c.removeprefix("prefill_progress ")) for c in comments if c.startswith("prefill_")]
    assert [p["processed_tokens"] for p in found] == [1, 2, 3]
    asked = parse(server.post(api.path, api.ask("a b c", stream=True, return_progress=True)).content)
    progress = [json.loads(e.data)["prompt_progress"] for e in asked if "prompt_progress" in e.data]
    assert [(p["processed"], p["total"]) for p in progress] == [(1, 3), (2, 3), (3, 3)]
    assert all({"cache", "time_ms"} <= p.keys() for p in progress)


def test_ollamas_progress_is_an_empty_line(server: Serving):
    lines = server.post("/api/chat", OLLAMA_CHAT.ask("a b", stream=True)).text.splitlines()
    first = json.loads(lines[0])
    assert first["message"]["content"] == ""
    assert first["exo"]["progress"]["processed"] == 1


# ------------------------------------------------------------------------------------------ Anthropic


def test_anthropic_blocks_tools_and_thinking(server: Serving):
    script = json.dumps([["reasoning", "hm"], ["text", "so"], ["tool", "f", '{"a": 1}'], ["tool", "f", "{}"]])
    tools = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    whole = server.post("/v1/messages", ANTHROPIC.ask(script, stream=False, tools=tools)).json()
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole["content"][2]["input"] == {"a": 1}
    assert whole["stop_reason"] == "tool_use"
    events = parse(server.post("/v1/messages", ANTHROPIC.ask(script, stream=True, tools=tools)).content)
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    starts = [json.loads(e.data) for e in events if e.type == "content_block_start"]
    stops = [json.loads(e.data)["index"] for e in events if e.type == "content_block_stop"]
    assert [s["index"] for s in starts] == stops == [0, 1, 2, 3]
    assert json.loads(events[0].data)["message"]["usage"]["input_tokens"] == len(script.split())


def test_anthropic_turns_become_ours(server: Serving):
    image = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"1234").decode()}
    body = {
        "system": [{"type": "text", "text": "one"}],
        "messages": [
            {"role": "user", "content": "two"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": [{"type": "text", "text": "three"}],
                    },
                    {"type": "image", "source": image},
                    {"type": "text", "text": " four"},
                ],
            },
        ],
    }
    answer = server.post("/v1/messages", body).json()
    assert answer["content"][0]["text"] == "<image/png 4> four"
    assert answer["usage"]["input_tokens"] == 6
    counted = server.post("/v1/messages/count_tokens", body).json()
    assert counted == {"input_tokens": 6}
    too_long = {"messages": [{"role": "user", "content": "w " * 6000}]}
    assert server.post("/v1/messages/count_tokens", too_long).json() == {"input_tokens": 6000}


def test_anthropic_refuses_what_only_its_own_servers_have(server: Serving):
    web = [{"type": "web_search_20250305", "name": "web_search"}]
    answer = server.post("/v1/messages", ANTHROPIC.ask("hi", stream=False, tools=web))
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert "web_search" in answer.json()["error"]["message"]
    for field, value in (("mcp_servers", [{"name": "m"}]), ("container", "c")):
        answer = server.post("/v1/messages", ANTHROPIC.ask("hi", stream=False, **{field: value}))
        assert answer.status_code == 400
        assert answer.json()["error"]["details"]["field"] == field


# ------------------------------------------------------------------------------------------ Responses


def test_responses_items_and_statelessness(server: Serving):
    script = json.dumps([["reasoning", "hm"], ["text", "so"], ["tool", "f", "{}"]])
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    whole = server.post("/v1/responses", RESPONSES.ask(script, stream=False, tools=tools)).json()
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["tools"][0]["name"] == "f"
    events = parse(server.post("/v1/responses", RESPONSES.ask(script, stream=True)).content)
    streamed = json.loads(events[-1].data)["response"]["output"]
    assert [item["type"] for item in streamed] == ["reasoning", "message", "function_call"]
    for field, value in (("previous_response_id", "resp_1"), ("conversation", "c"), ("background", True)):
        answer = server.post("/v1/responses", RESPONSES.ask("hi", stream=False, **{field: value}))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field


def test_responses_input_items(server: Serving):
    items = [
        {"role": "user", "content": "one"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "two"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "three four"}]},
    ]
    answer = server.post("/v1/responses", {"input": items, "instructions": "zero"}).json()
    assert answer["output"][0]["content"][0]["text"] == "three four"
    assert answer["usage"]["input_tokens"] == 5
    assert server.get("/v1/responses/resp_unknown").status_code == 404


def test_responses_text_and_calls_are_one_turn():
    """As a reply of this API comes: its items, sent back, are the turn that the model wrote."""
    items = [
        {"role": "user", "content": "one"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "two"},
        {"type": "function_call", "call_id": "c", "name": "h", "arguments": "{}"},
        {"type": "message", "role": "assistant", "content": "three"},
    ]
    messages = parse_responses(json.dumps({"input": items}).encode()).request.messages
    assert [(m.role, m.content, m.reasoning, [call.id for call in m.tool_calls]) for m in messages] == [
        ("user", "one", None, []),
        ("assistant", "so", "hm", ["a", "b"]),
        ("tool", "two", None, []),
        ("assistant", None, None, ["c"]),
        ("assistant", "three", None, []),
    ]


def test_responses_repeat_what_was_asked(server: Serving):
    said = {"instructions": "be brief", "metadata": {"a": "b"}, "tool_choice": "auto"}
    said |= {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 50}
    answer = server.post("/v1/responses", RESPONSES.ask("hi", stream=False, **said)).json()
    assert answer.items() >= {**said, "parallel_tool_calls": True}.items()


TWO_CALLS = json.dumps([["text", "so"], ["tool", "f", '{"a": 1}'], ["tool", "f", '{"a": 2}']])
FUNCTION = {"name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("api", "more"),
    [
        (apis.CHAT, {"tools": [{"type": "function", "function": FUNCTION}], "parallel_tool_calls": False}),
        (RESPONSES, {"tools": [{"type": "function", **FUNCTION}], "parallel_tool_calls": False}),
        (
            ANTHROPIC,
            {
                "tools": [{"name": "f", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            },
        ),
    ],
    ids=repr,
)
def test_one_tool_call_where_parallel_ones_are_not_wanted(server: Serving, api: Api, more: Any):
    for stream in (False, True):
        answer = server.post(api.path, api.ask(TWO_CALLS, stream, **more)).text
        assert re.search(r'"a\W+1', answer)
        assert not re.search(r'"a\W+2', answer)


# ----------------------------------------------------------------------------------------- completions


def test_completions_echo_and_logprobs(server: Serving):
    echoed = server.post("/v1/completions", {"prompt": "a b", "echo": True}).json()
    assert echoed["choices"][0]["text"] == "a ba b"
    found = server.post("/v1/completions", {"prompt": ["ab c"], "logprobs": 1}).json()
    assert found["choices"][0]["logprobs"] == {
        "tokens": ["ab ", "c"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"ab ": -0.5}, {"c": -0.5}],
        "text_offset": [0, 3],
    }
    for bad in (
        {"prompt": ["a", "b"]},
        {"prompt": [1, 2]},
        {"prompt": "a", "n": 2},
        {"prompt": "a", "suffix": "z"},
    ):
        assert server.post("/v1/completions", bad).status_code == 400


# --------------------------------------------------------------------------------------------- Ollama


def test_ollama_streams_unless_told_not_to_and_counts(server: Serving):
    lines = server.post("/api/chat", OLLAMA_CHAT.body("a b")).text.splitlines()
    last = json.loads(lines[-1])
    assert last["done"] is True
    assert (last["prompt_eval_count"], last["eval_count"]) == (2, 2)
    assert last["total_duration"] > 0
    raw = server.post("/api/generate", {**OLLAMA_GENERATE.body("a b"), "raw": True, "stream": False}).json()
    assert raw["response"] == "a b"


def test_ollama_tools_thinking_and_options(server: Serving):
    script = json.dumps([["reasoning", "hm"], ["tool", "f", '{"a": 1}']])
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    answer = server.post("/api/chat", OLLAMA_CHAT.ask(script, stream=False, tools=tools)).json()
    assert answer["message"]["thinking"] == "hm"
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    for more in ({"options": {"num_predict": 0}}, {"options": {"temperature": "hot"}}, {"format": "xml"}):
        refused = server.post("/api/chat", OLLAMA_CHAT.ask("hi", stream=False, **more))
        assert refused.status_code == 400
        assert next(iter(more)) in refused.json()["error"]
    fine = {"options": {"num_predict": -1, "num_ctx": 4096, "repeat_penalty": 1.0}, "keep_alive": "5m"}
    assert server.post("/api/chat", OLLAMA_CHAT.ask("hi", stream=False, **fine)).status_code == 200
    assert server.post("/api/chat", OLLAMA_CHAT.ask("hi", stream=False, keep_alive="-1")).status_code == 200


def test_ollama_models_routes(server: Serving):
    assert [m["name"] for m in server.get("/api/tags").json()["models"]] == ["scripted:latest"]
    shown = server.post("/api/show", {"model": "scripted"}).json()
    assert shown["capabilities"] == ["completion", "tools", "vision", "thinking"]
    assert shown["model_info"]["scripted.context_length"] == 5000
    assert server.post("/api/show", {"model": "nope"}).status_code == 404
    told = server.get("/api/version").json()
    assert [int(part) for part in told["version"].split(".")] >= [0, 9, 0]  # `thinking`
    assert told["exo"]["version"] == version("exocli")


# ---------------------------------------------------------------------------------------------- others


def test_tasks_that_nobody_offers_are_501_in_the_apis_shape(server: Serving):
    for body in ({}, {"input": "x"}, {"model": "nope"}):
        assert server.post("/v1/embeddings", body).json()["error"]["code"] == "not_implemented"
        for path in ("/v1/embeddings", "/api/embed", "/api/embeddings"):
            answer = server.post(path, body)
            assert answer.status_code == 501 and "no model of this server makes embeddings" in answer.text
    assert isinstance(server.post("/api/pull", {}).json()["error"], str)


def test_models_in_both_clients_shapes(server: Serving):
    openai = server.get("/v1/models").json()
    assert openai["object"] == "list"
    assert openai["data"][0]["id"] == "scripted"
    theirs = server.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert theirs["data"][0]["type"] == "model"
    assert theirs["has_more"] is False
    assert server.get("/v1/models/scripted").json()["object"] == "model"
    assert server.get("/v1/models/").json() == openai
    unknown = [server.get("/v1/models/nope", headers=h) for h in ({}, {"anthropic-version": "2023-06-01"})]
    assert [answer.status_code for answer in unknown] == [404, 404]
    assert unknown[0].json()["error"]["code"] == "model_not_found"
    assert unknown[1].json()["error"]["type"] == "not_found_error"
    assert unknown[1].headers["request-id"] == unknown[1].json()["request_id"]


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions is."),
        ("POST", "/v1/v1/messages", "/v1/messages is."),
        ("GET", "/v1/api/tags", "/api/tags is."),
        ("GET", "/v1", "GET /v1 is not a route of this server."),
        ("GET", "/v1/chat/completions", "/v1/chat/completions takes POST, not GET."),
    ],
)
def test_a_wrong_base_url_is_told_the_right_path(server: Serving, method: str, path: str, words: str):
    with server.client() as client:
        answer = client.request(method, path).json()
    assert words in (answer["error"]["message"] if "error" in answer else answer)


def test_clients_try_again_only_where_waiting_helps():
    died, broken = WorkerDied("It died."), ModelBroken("Its files are cut off.")
    for error in (died, from_dict(died.to_dict())):
        assert headers_of(error) == {"Retry-After": "1"}
    for error in (broken, from_dict(broken.to_dict()), BadRequest("No.")):
        assert headers_of(error) == {"x-should-retry": "false"}


def test_the_page_answers_head_as_ollamas_client_asks(server: Serving):
    with server.client() as client:
        assert client.head("/").status_code == 200


def test_every_api_is_in_the_list():
    assert {api.name for api in apis.ALL} == set(NAMES)
