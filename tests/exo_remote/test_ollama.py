"""Ollama's lines → events, over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from exocli import Reasoning, StreamEngine, Text, Usage

from tests.exo_remote.asking import ask, chat, opened
from tests.exo_remote.upstream import Asked, Connection, Upstream

NDJSON = {"Content-Type": "application/x-ndjson"}
DONE = {"done": True, "done_reason": "stop", "prompt_eval_count": 5, "eval_count": 2}


def says(**message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": "", **message}, "done": False}


@asynccontextmanager
async def server(
    folder: Path, *lines: Any, hang: bool = False, end: bytes = b"\n"
) -> AsyncIterator[tuple[Upstream, StreamEngine]]:
    async def script(asked: Asked, connection: Connection) -> None:
        await connection.head(headers=NDJSON)
        data = b"\n".join(json.dumps(line, ensure_ascii=False).encode() for line in lines) + end
        for at in range(0, len(data), 3):
            await connection.send(data[at : at + 3])
        if hang:
            await asked.closed.wait()

    async with Upstream({"/api/chat": script}) as up, opened(up.url, folder, dialect="ollama") as engine:
        yield up, engine


async def test_a_reply(tmp_path: Path):
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    lines = [
        says(thinking="hm"),
        says(content="é\u2028!"),
        says(),
        says(tool_calls=[call]),
        {**says(), **DONE},
    ]
    async with server(tmp_path, *lines, end=b"") as (up, engine):
        got = await ask(engine)
        assert [e.text for e in got.of(Reasoning)] == ["hm"] and got.text == "é\u2028!"
        assert [(c.name, c.arguments) for c in got.calls] == [("f", '{"a": 1}')]
        assert got.finished.reason == "tool_calls"
        assert got.finished.usage == Usage(prompt_tokens=5, completion_tokens=2)
        assert (await up.wait_for("/api/chat")).json["model"] == "m"


async def test_length_and_logprobs(tmp_path: Path):
    line = {**says(content="x"), "logprobs": [{"token": "x", "logprob": -1.0, "top_logprobs": []}]}
    async with server(tmp_path, line, {**says(), **DONE, "done_reason": "length"}) as (_, engine):
        got = await ask(engine)
        (text,) = got.of(Text)
        assert text.logprobs == [{"token": "x", "id": None, "logprob": -1.0, "top": []}]
        assert got.finished.reason == "length"


async def test_an_error_in_the_stream_and_an_early_end(tmp_path: Path):
    async with server(tmp_path, says(content="x"), {"error": "the runner died"}) as (_, engine):
        assert "the runner died" in (await ask(engine)).error["message"]
    async with server(tmp_path, says(content="x")) as (_, engine):
        assert "before it was whole" in (await ask(engine)).error["message"]
    async with server(tmp_path, 5) as (_, engine):
        assert "not a JSON object" in (await ask(engine)).error["message"]


async def test_a_cancel_closes_the_connection(tmp_path: Path):
    async with server(tmp_path, says(content="x"), hang=True) as (up, engine):
        got = await ask(engine, at=lambda event: isinstance(event, Text))
        await (await up.wait_for("/api/chat")).closed.wait()
        assert got.finished.cancel is not None and not got.finished.cancel.confirmed


async def test_formats(tmp_path: Path):
    """Its API knows JSON and schemas; what it does not know is refused rather than sent as something else."""
    schema = {"type": "object"}
    for format, sent in (
        ({"type": "json_object"}, "json"),
        ({"type": "json_schema", "schema": schema}, schema),
    ):
        async with server(tmp_path, {**says(content="{}"), **DONE}) as (up, engine):
            await ask(engine, chat(format=format))
            assert (await up.wait_for("/api/chat")).json["format"] == sent
    async with server(tmp_path) as (up, engine):
        got = await ask(engine, chat(format={"type": "regex", "pattern": "a"}))
        assert got.error["code"] == "unsupported" and "regex" in got.error["message"]
