"""Embeddings of servers: what is sent and read in each API, then exo behind exo with the real model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exocli import CancelToken, Embedding, Request, Usage, plugins
from exocli.runtime.session import Session

from tests.exo_remote.asking import Answer, ask, chat, opened
from tests.exo_remote.upstream import Asked, Connection, Upstream, mute
from tests.server.serving import Serving

ROWS = [{"index": 1, "embedding": [0.5, -1]}, {"index": 0, "embedding": [1.5, 2]}]
OPENAI = {"data": ROWS, "usage": {"prompt_tokens": 7, "total_tokens": 7}}
OLLAMA = {"model": "m", "embeddings": [[1.5, 2], [0.5, -1]], "prompt_eval_count": 7}
PATHS = {"openai": "/v1/embeddings", "ollama": "/api/embed"}


def embed(*texts: str, **fields: Any) -> Request:
    return Request(task="embed", inputs=texts or ("a", "b"), **fields)


def answers(data: Any, status: int = 200) -> Any:
    async def answer(asked: Asked, connection: Connection) -> None:
        await connection.json(data, status)

    return answer


@pytest.mark.parametrize(
    ("dialect", "data", "sent"),
    [
        ("openai", OPENAI, {"encoding_format": "float"}),
        ("ollama", OLLAMA, {"truncate": False}),
    ],
)
async def test_each_api(tmp_path: Path, dialect: Any, data: Any, sent: dict[str, Any]):
    path = PATHS[dialect]
    async with Upstream({path: answers(data)}) as up, opened(up.url, tmp_path, dialect=dialect) as engine:
        got = await ask(engine, embed(dimensions=2))
        asked = await up.wait_for(path)
    assert asked.json == {"model": "m", "input": ["a", "b"], "dimensions": 2, **sent}
    assert [(e.index, e.vector) for e in got.of(Embedding)] == [(0, (1.5, 2.0)), (1, (0.5, -1.0))]
    assert got.finished.reason == "stop" and got.finished.usage == Usage(prompt_tokens=7)


@pytest.mark.parametrize(
    ("data", "status", "code", "words"),
    [
        ({"data": ROWS[:1]}, 200, "upstream_error", "1 embeddings for 2 texts"),
        ({"data": "x"}, 200, "upstream_error", "makes no sense"),
        ([], 200, "upstream_error", "makes no sense"),
        ({"error": {"message": "too long"}}, 200, "upstream_error", "too long"),
        ({"error": {"message": "input too long", "param": "input"}}, 400, "bad_request", "input too long"),
        ({"error": {"message": "no such thing"}}, 501, "upstream_error", "no such thing"),
    ],
)
async def test_answers_that_are_none(tmp_path: Path, data: Any, status: int, code: str, words: str):
    async with Upstream({PATHS["openai"]: answers(data, status)}) as up, opened(up.url, tmp_path) as engine:
        got = await ask(engine, embed())
    assert got.error["code"] == code and words in got.error["message"]
    assert not got.of(Embedding)


async def test_a_cancel_closes_the_connection(tmp_path: Path):
    async with Upstream({PATHS["openai"]: mute}) as up, opened(up.url, tmp_path) as engine:
        cancel = CancelToken()

        async def when_asked() -> Asked:
            asked = await up.wait_for(PATHS["openai"])
            cancel.cancel()
            return asked

        asked, got = await asyncio.gather(when_asked(), ask(engine, embed(), cancel=cancel))
        await asyncio.wait_for(asked.closed.wait(), 5)
    receipt = got.finished.cancel
    assert receipt is not None and (receipt.phase, receipt.confirmed) == ("prefill", False)


# ------------------------------------------------------------------------------------- exo behind exo


@pytest.fixture(scope="module")
def upstream(minilm_home: Path) -> Iterator[Serving]:
    with Serving(minilm_home, "-m", "minilm", backend="mlx") as serving:
        yield serving


async def through(url: str, request: Request) -> Answer:
    got = Answer()
    spec = plugins.backend("remote")
    async with Session(spec=spec, model="minilm", path="minilm", options={"url": url}) as session:
        async for event in session.stream(request):
            got.events.append(event)
    return got


async def test_an_exo_server_says_what_its_model_is_for(upstream: Serving):
    got = await through(upstream.url, embed("a meal", "a", truncate=True))
    expected = upstream.post("/v1/embeddings", {"input": ["a meal", "a"]}).json()["data"]
    for event, row in zip(got.of(Embedding), expected, strict=True):
        assert event.vector == pytest.approx(row["embedding"], abs=1e-5) and event.index == row["index"]
    refused = await through(upstream.url, chat("hi", model="minilm"))
    assert refused.error["message"] == "minilm cannot chat, only make embeddings."


async def test_a_gateway_passes_embeddings_on(upstream: Serving, tmp_path: Path):
    flags = ("-o", f"url={upstream.url}")
    with Serving(tmp_path, *flags, backend="remote") as gateway:
        own, passed = (
            server.post("/v1/embeddings", {"input": "a meal"}).json() for server in (upstream, gateway)
        )
        assert passed["usage"] == own["usage"]
        assert passed["data"][0]["embedding"] == pytest.approx(own["data"][0]["embedding"], abs=1e-6)
        long = {"model": "minilm", "input": "word " * 400}
        assert gateway.post("/api/embed", long).status_code == 200
        refused = gateway.post("/api/embed", {**long, "truncate": False})
        assert refused.status_code == 400 and "402 tokens" in refused.json()["error"]
        many = {"input": [f"sentence number {n}" for n in range(4000)]}
        connection = gateway.open("/v1/embeddings", many, {"X-Request-Id": "gone"})
        upstream.wait_requests(lambda rows: any(r["processed"] > 0 for r in rows), 30)
        connection.close()
        gateway.wait_idle(5)
        upstream.wait_idle(5)
