"""Keepalives, and a strict reader: a long silence is filled, a comment is never data, the parser is ours."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from exocli.server import anthropic, ollama, openai_chat, openai_completions, openai_responses
from exocli.server.generate import Api
from exocli.server.hub import Model, Served
from exocli.server.requests import Running
from exocli.server.streaming import Collected, comment, frames, line, sse
from exocli.types import Finished, Progress, Reasoning, Started, Status, Text, ToolCall, Usage
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server import apis
from tests.server.sse import Event, lines_of, parse

APIS: list[tuple[Api, apis.Api]] = [
    (openai_chat.API, apis.CHAT),
    (openai_completions.API, apis.COMPLETIONS),
    (openai_responses.API, apis.RESPONSES),
    (anthropic.API, apis.ANTHROPIC),
    (ollama.CHAT, apis.OLLAMA_CHAT),
    (ollama.GENERATE, apis.OLLAMA_GENERATE),
]
TEXT = st.text(max_size=12)


def test_the_parser_follows_the_specification():
    assert lines_of("a\r\nb\nc\rd\x85e\u2028f\n") == ["a", "b", "c", "d\x85e\u2028f"]
    raw = b"\xef\xbb\xbfdata: YHOO\ndata:+2\ndata:  10\n\n: hi\n"
    raw += b"event: add\nid: 1\ndata: x\r\n\r\n\nevent: none\n\n"
    comments: list[str] = []
    assert parse(raw, comments) == [Event("message", "YHOO\n+2\n 10"), Event("add", "x")]
    assert comments == ["hi"]
    for bad in (b"data: x", b"data: x\n", b"nonsense: 1\n\n", b"data: \xff\n\n"):
        with pytest.raises((AssertionError, UnicodeDecodeError)):
            parse(bad)


@given(st.dictionaries(TEXT, TEXT), TEXT)
def test_frames_are_one_event_each_whatever_is_in_them(data: dict[str, str], text: str):
    (event,) = parse(sse(data, "kind"))
    assert (event.type, json.loads(event.data)) == ("kind", data)
    comments: list[str] = []
    assert parse(comment(json.dumps(text)), comments) == []
    assert json.loads(comments[0]) == text
    assert json.loads(line(data)) == data
    assert line(data).decode("ascii").splitlines(keepends=True) == [line(data).decode()]


def running_of(api: Api, call: Any) -> Running:
    def never(concurrency: int | None) -> Any:
        raise AssertionError("nothing is opened here")

    model = Model(Served(name="m", key="k", open=never, backend="b"), None, 0, 0.0)
    return Running(request=call.request, model=model, api=api.name, client="here")


EVENTS = st.lists(
    st.one_of(
        TEXT.map(lambda text: Text(id="", text=text)),
        TEXT.map(lambda text: Reasoning(id="", text=text)),
        st.integers(0, 99).map(lambda n: Progress(id="", processed=n, total=99)),
        st.just(ToolCall(id="", index=0, call_id="c", name="f", arguments="{}")),
        st.just(Status(id="", phase="queued", position=1)),
    ),
    max_size=12,
)


@pytest.mark.parametrize(("api", "reader"), APIS, ids=lambda value: getattr(value, "name", ""))
@settings(max_examples=40)
@given(events=EVENTS, reason=st.sampled_from(["stop", "length", "tool_calls", "cancelled", "error"]))
async def test_any_order_of_events_is_a_well_formed_stream(
    api: Api, reader: apis.Api, events: Any, reason: Any
):
    """Streamed and whole say the same, and every stream has its end."""
    call = api.parse(json.dumps(reader.ask("x", stream=True)).encode())
    running = running_of(api, call)
    error = {"code": "engine_failed", "message": "broke"} if reason == "error" else None
    ended = Finished(id="", reason=reason, usage=Usage(prompt_tokens=3), error=error)
    collected = Collected()
    for event in (Started(id="", model="m", backend="b"), *events, ended):
        running.put(event)
        collected.add(event)
    raw = b"".join([frame async for frame in frames(running, api.reply(call, running), 1.0)])
    if reason == "error":
        assert b"broke" in raw
        if reader in apis.SSE:
            parse(raw)
        return
    said, _, marked, _ = reader.read_stream(raw)
    assert marked
    whole = api.reply(call, running).whole(collected)
    assert said == (reader.text_of(whole) or "")
    for name in ("eval_duration", "prompt_eval_duration"):  # Ollama's clients divide by them
        assert whole.get(name, 1) > 0


async def test_silence_is_filled_and_ends_with_the_request():
    for api, reader in APIS:
        call = api.parse(json.dumps(reader.ask("x", True)).encode())
        running = running_of(api, call)
        running.put(Started(id="", model="m", backend="b"))
        stream: AsyncIterator[bytes] = frames(running, api.reply(call, running), 0.01)
        seen = [await anext(stream) for _ in range(5)]
        running.put(Text(id="", text="late"))
        running.put(Finished(id="", reason="stop"))
        rest = [frame async for frame in stream]
        raw = b"".join([*seen, *rest])
        assert reader.read_stream(raw)[0] == "late"
        if reader in apis.SSE and reader is not apis.ANTHROPIC:
            comments: list[str] = []
            parse(raw, comments)
            assert "keepalive" in comments
        elif reader is apis.ANTHROPIC:
            assert parse(raw)[0].type == "message_start"
            assert any(event.type == "ping" for event in parse(raw))
