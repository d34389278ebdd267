"""Every odd stream that a server may send, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from exocli import ExoError, Finished, Progress, Reasoning, Status, Text, Usage
from exocli.types import event_from_json, to_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exo_remote import engine as engine_module
from exo_remote import exchange, sse
from exo_remote.chunks import Reply, usage_of
from exo_remote.ollama import OllamaReply
from tests.exo_remote.asking import Answer, ask, chat, opened
from tests.exo_remote.upstream import CHAT, Asked, Connection, Handler, Upstream, delta, hangs, says, sends

KEYS = st.sampled_from(
    [
        *(
            "choices",
            "delta",
            "message",
            "content",
            "reasoning",
            "tool_calls",
            "function",
            "name",
            "arguments",
        ),
        *("index", "finish_reason", "usage", "prompt_tokens", "prompt_tokens_details", "cached_tokens"),
        *("prompt_progress", "processed", "total", "logprobs", "top_logprobs", "tokens", "token", "exo"),
        *("cancel", "phase", "error", "code", "type", "progress", "done", "done_reason", "thinking"),
    ]
)
USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}


async def answered(script: Handler, folder: Path, request: Any = None, **options: Any) -> Answer:
    async with Upstream({CHAT: script}) as up, opened(up.url, folder, **options) as engine:
        return await ask(engine, request)


async def test_a_plain_reply(tmp_path: Path):
    script = says(delta(role="assistant"), delta("Hel"), delta("lo"), delta(finish="stop"), USAGE, "[DONE]")
    async with Upstream({CHAT: script}) as up, opened(up.url, tmp_path) as engine:
        got = await ask(engine, chat("Hi", max_tokens=7, stop=("x",)))
        assert got.text == "Hello" and got.finished.reason == "stop"
        assert got.finished.usage == Usage(
            prompt_tokens=5, cached_tokens=3, completion_tokens=2, reasoning_tokens=1
        )
        sent = (await up.wait_for(CHAT)).json
        assert sent == {
            "model": "m",
            "stream": True,
            "messages": [{"role": "user", "content": "Hi"}],
            "stream_options": {"include_usage": True},
            "max_tokens": 7,
            "stop": ["x"],
        }


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_one_byte_at_a_time_with_every_line_end(end: bytes, tmp_path: Path):
    lines = [
        b"\xef\xbb\xbf: hello",
        b"data:" + json.dumps(delta("a\u2028b😀"), ensure_ascii=False).encode(),
        b"",
        b": ping",
        b"event: message",
        b'data: {"choices": [{"index": 0,',
        b'data: "delta": {"content": "c"}, "finish_reason": "stop"}]}',
        b"",
        b"data:[DONE]",
        b"",
        b"",
    ]
    whole = end.join(lines)
    got = await answered(sends(*(whole[i : i + 1] for i in range(len(whole)))), tmp_path)
    assert got.text == "a\u2028b😀c" and got.finished.reason == "stop"


async def test_gzip(tmp_path: Path):
    data = b"".join(b"data: %s\n\n" % json.dumps(d).encode() for d in (delta("zip"), delta(finish="length")))
    packed = gzip.compress(data)
    script = sends(packed[:20], packed[20:], headers={"Content-Encoding": "gzip"})
    got = await answered(script, tmp_path)
    assert got.text == "zip" and got.finished.reason == "length"


async def test_no_done_marker(tmp_path: Path):
    got = await answered(says(delta("x"), delta(finish="stop")), tmp_path)
    assert got.text == "x" and got.finished.reason == "stop"


async def test_no_reason_but_the_marker(tmp_path: Path):
    got = await answered(says(delta("x"), "[DONE]"), tmp_path)
    assert got.finished.reason == "stop"


async def test_no_usage_counts_pieces(tmp_path: Path):
    got = await answered(says(delta("x"), delta("y"), delta(finish="stop"), "[DONE]"), tmp_path)
    assert got.finished.usage == Usage(completion_tokens=2)


async def test_an_end_too_early_is_an_error_and_the_text_stays(tmp_path: Path):
    got = await answered(says(delta("half")), tmp_path)
    assert got.text == "half" and "before it was whole" in got.error["message"]
    assert got.error["code"] == "upstream_error"


async def test_an_error_after_three_chunks(tmp_path: Path):
    trouble = {"error": {"message": "CUDA is out of memory.", "type": "server_error", "code": 500}}
    script = says(delta("a"), delta("b"), delta("c"), trouble, "[DONE]")
    async with Upstream({CHAT: script}) as up, opened(up.url, tmp_path) as engine:
        got = await ask(engine)
        assert got.text == "abc" and got.error["details"]["status"] == 500
        assert "CUDA is out of memory" in got.error["message"]
        up.routes[CHAT] = says(delta("fine", finish="stop"), "[DONE]")
        assert (await ask(engine)).text == "fine"


@pytest.mark.parametrize(
    "event", [b'event: error\ndata: {"message": "bad luck"}\n\n', b'data: {"error": "bad luck"}\n\n']
)
async def test_other_forms_of_errors(event: bytes, tmp_path: Path):
    got = await answered(sends(event), tmp_path)
    assert "bad luck" in got.error["message"]


async def test_a_context_overflow_in_the_stream_keeps_its_counts(tmp_path: Path):
    error = {
        "message": "Too long.",
        "code": "context_length_exceeded",
        "details": {"prompt_tokens": 9, "context": 5},
    }
    got = await answered(says({"error": error}), tmp_path)
    assert got.error["code"] == "context_length_exceeded"
    assert got.error["details"]["prompt_tokens"] == 9 and got.error["details"]["context"] == 5


async def test_a_reset_in_mid_stream(tmp_path: Path):
    async def script(asked: Asked, connection: Connection) -> None:
        await connection.head()
        await connection.stream(delta("half"))
        await asyncio.sleep(0.05)
        connection.reset()

    got = await answered(script, tmp_path)
    assert "broke off" in got.error["message"]


async def test_what_is_not_json(tmp_path: Path):
    got = await answered(says("oops"), tmp_path)
    assert "not JSON: oops" in got.error["message"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.dictionaries(KEYS, JSON, max_size=5), max_size=4), st.sampled_from([Reply, OllamaReply]))
def test_whatever_json_comes_only_our_own_errors_do(chunks: list[Any], kind: type[Reply]):
    reply = kind("id", "http://x")
    with contextlib.suppress(ExoError):
        for chunk in chunks:
            for event in reply.on_item(sse.Event(json.dumps(chunk))):
                assert event_from_json(to_json(event)) == event
        assert isinstance([*reply.end()][-1], Finished)


async def test_silence_then_tokens_with_the_time_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "SILENCE_S", 0.02)
    shown = asyncio.Event()

    async def script(asked: Asked, connection: Connection) -> None:
        await connection.head()
        await shown.wait()
        await connection.stream(delta("at last", finish="stop"), "[DONE]")

    def look(event: Any) -> bool:
        if isinstance(event, Status) and "accepted the request and is silent" in (event.text or ""):
            shown.set()
        return False

    async with Upstream({CHAT: script}) as up, opened(up.url, tmp_path) as engine:
        got = await ask(engine, at=look)
        assert got.text == "at last"
        assert all(up.url.removeprefix("http://") in status.text for status in got.of(Status))


async def test_heartbeats_for_ever_are_no_progress(tmp_path: Path):
    async def script(asked: Asked, connection: Connection) -> None:
        await connection.head()
        await connection.stream(delta("x"))
        while not asked.closed.is_set():
            await connection.send(b": keepalive\n\n")
            await connection.stream(delta(role="assistant"), {"choices": [], "prompt_progress": {"total": 0}})
            await asyncio.sleep(0.01)

    got = await answered(script, tmp_path, idle_timeout=0.3)
    assert got.text == "x" and "no progress for 0.3 s" in got.error["message"]
    assert got.error["details"]["status"] == 504


async def test_progress_holds_the_idle_limit_off(tmp_path: Path):
    async def script(asked: Asked, connection: Connection) -> None:
        await connection.head()
        for n in range(1, 9):
            await connection.send(b": keepalive %d/8\n\n" % n)
            await asyncio.sleep(0.1)
        await connection.stream(delta("x", finish="stop"))

    got = await answered(script, tmp_path, idle_timeout=0.4)
    assert got.text == "x" and [p.processed for p in got.of(Progress)] == list(range(1, 9))


async def test_a_connection_that_stays_open_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    start = time.monotonic()
    got = await answered(hangs(delta("x", finish="stop"), "[DONE]"), tmp_path)
    assert got.text == "x" and got.finished.reason == "stop"
    assert time.monotonic() - start < exchange.AFTER_REASON_S
    monkeypatch.setattr(exchange, "AFTER_REASON_S", 0.05)
    got = await answered(hangs(delta("x", finish="length")), tmp_path)
    assert got.text == "x" and got.finished.reason == "length"


async def test_a_connection_is_used_again(tmp_path: Path):
    """The end of its body comes after the end marker: the reply does not wait for it."""
    ended = asyncio.Event()

    async def script(asked: Asked, connection: Connection) -> None:
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        data = f"data: {json.dumps(delta('x', finish='stop'))}\n\ndata: [DONE]\n\n"
        await connection.send(f"{head}{len(data):x}\r\n{data}\r\n".encode())
        await ended.wait()
        await connection.send(b"0\r\n\r\n")
        connection.kept = True

    async with Upstream({CHAT: script}) as up, opened(up.url, tmp_path) as engine:
        assert (await ask(engine)).text == "x"
        ended.set()
        before = up.connections
        while engine._ending:  # type: ignore[attr-defined]
            await asyncio.sleep(0.005)
        assert (await ask(engine)).text == "x"
        assert up.connections == before


async def test_tool_calls_are_put_together(tmp_path: Path):
    def part(index: int, **more: Any) -> dict[str, Any]:
        return delta(tool_calls=[{"index": index, **more}])

    script = says(
        part(0, id="c1", function={"name": "f", "arguments": '{"a'}),
        part(1, id="c2", function={"name": "g", "arguments": ""}),
        part(0, function={"arguments": '": 1}'}),
        delta(finish="tool_calls"),
        "[DONE]",
    )
    got = await answered(script, tmp_path)
    assert [(c.index, c.call_id, c.name, c.arguments) for c in got.calls] == [
        (0, "c1", "f", '{"a": 1}'),
        (1, "c2", "g", "{}"),
    ]
    assert got.finished.reason == "tool_calls"


async def test_a_whole_call_without_index_or_id_and_a_reason_of_stop(tmp_path: Path):
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    got = await answered(says(delta(tool_calls=[call], finish="stop")), tmp_path)
    assert got.calls[0].arguments == '{"a": 1}' and got.calls[0].call_id.startswith("call_")
    assert got.finished.reason == "tool_calls"


@pytest.mark.parametrize(
    "fields", [("reasoning_content",), ("reasoning",), ("reasoning_content", "reasoning")]
)
async def test_reasoning_in_either_field_and_once(fields: tuple[str, ...], tmp_path: Path):
    thought = delta(**dict.fromkeys(fields, "hm"))
    got = await answered(says(thought, delta("x", finish="stop")), tmp_path)
    assert [e.text for e in got.of(Reasoning)] == ["hm"] and got.text == "x"


async def test_a_server_that_does_not_stream(tmp_path: Path):
    async def script(asked: Asked, connection: Connection) -> None:
        message = {"role": "assistant", "content": "all at once"}
        await connection.json({"choices": [{"message": message, "finish_reason": "stop"}], **USAGE_ONLY})

    USAGE_ONLY = {"usage": USAGE["usage"]}
    got = await answered(script, tmp_path)
    assert got.text == "all at once" and got.finished.usage.prompt_tokens == 5


@pytest.mark.parametrize("odd", [-1, "5", None, 2.5])
def test_counts_that_are_none(odd: Any):
    assert usage_of({"prompt_tokens": odd, "completion_tokens": 2}) == Usage(completion_tokens=2)


async def test_logprobs(tmp_path: Path):
    entry = {"token": "x", "logprob": -0.5, "top_logprobs": [{"token": "y", "logprob": -1.0}]}
    chunk = delta("x", finish="stop")
    chunk["choices"][0]["logprobs"] = {"content": [entry]}
    got = await answered(says(chunk), tmp_path, chat("Hi", logprobs=1))
    (text,) = got.of(Text)
    assert text.logprobs == [{"token": "x", "id": None, "logprob": -0.5, "top": [["y", None, -1.0]]}]


@pytest.mark.parametrize(
    "pieces",
    [
        [b': prefill_progress {"processed_tokens": 4, "total_tokens": 9, "cached_tokens": 2}\n\n'],
        [b'data: {"choices": [], "prompt_progress": {"processed": 4, "total": 9, "cache": 2}}\n\n'],
    ],
)
async def test_forms_of_progress(pieces: list[bytes], tmp_path: Path):
    end = b"data: %s\n\n" % json.dumps(delta("x", finish="stop")).encode()
    got = await answered(sends(*pieces, *pieces, end), tmp_path)
    (progress,) = got.of(Progress)
    assert (progress.processed, progress.total, progress.cached) == (4, 9, 2)


async def test_queue_and_loading_of_an_exo_server(tmp_path: Path):
    end = b"data: %s\n\n" % json.dumps(delta("x", finish="stop")).encode()
    script = sends(
        b': queued {"position": 2}\n\n: queued {"position": 2}\n\n: loading {"done": 1, "total": 3}\n\n', end
    )
    got = await answered(script, tmp_path)
    assert [(s.phase, s.position, s.done, s.total) for s in got.of(Status)] == [
        ("queued", 2, None, None),
        ("loading", None, 1, 3),
    ]


async def test_lm_studio_says_only_how_much(tmp_path: Path):
    kind = b"prompt_processing.progress"
    share = b'event: %s\ndata: {"type": "%s", "progress": 0.25}\n\n' % (kind, kind)
    end = b"data: %s\n\n" % json.dumps(delta("x", finish="stop")).encode()
    got = await answered(sends(share, end), tmp_path)
    assert [s.text for s in got.of(Status)] == ["reading the prompt, 25%"]


async def test_someone_else_cancels_at_the_upstream(tmp_path: Path):
    last = {**delta(finish="length"), "exo": {"cancel": {"phase": "decode", "kept_tokens": 7, "ranks": 2}}}
    got = await answered(says(delta("x"), last, "[DONE]"), tmp_path)
    assert got.finished.reason == "cancelled" and got.finished.cancel is not None
    assert (got.finished.cancel.kept_tokens, got.finished.cancel.ranks) == (7, 2)


async def test_defaults_of_the_config_where_the_request_says_nothing(tmp_path: Path):
    async with (
        Upstream({CHAT: says(delta("x", finish="stop"))}) as up,
        opened(up.url, tmp_path, defaults={"temperature": 0.5, "top_k": 3}) as engine,
    ):
        await ask(engine)
        sent = (await up.wait_for(CHAT)).json
        assert sent["temperature"] == 0.5 and sent["top_k"] == 3
