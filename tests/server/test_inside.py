"""What is seen best from inside the server's process: a request being prepared, a signal before the first
socket, files that requests bring."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from exocli import Finished, Message, Request, Text
from exocli.runtime.session import Session
from exocli.server import listen, run, spool
from exocli.server.access_log import AccessLog
from exocli.server.app import build
from exocli.server.hub import Model, Served
from exocli.server.requests import Registry, Running
from exocli.server.settings import STALLED_AFTER_S, Settings
from starlette.applications import Starlette

from tests.support.engines import spec


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXO_HOME", str(tmp_path))


def counting() -> Session:
    return Session(spec=spec("step", "inline", "open_counting"), model="count", path="count")


def served(session: Session) -> Served:
    return Served(name="count", key="", open=lambda concurrency: session, backend="counting")


async def test_a_cancel_does_not_wait_for_what_prepares_the_request():
    session = counting()
    await session.load()
    registry = Registry()
    model = Model(served(session), None, 0, 0.0)
    request = Request(messages=(Message(role="user", content="prepare-hang"),))
    registry.start(Running(request=request, model=model, api="test", client="here"))
    group = session._loader.ready
    while group is None or not group._prepares:
        await asyncio.sleep(0.001)
    status, body = await registry.cancel(request.id)
    assert (status, body["state"], body["phase"]) == (200, "cancelled", "queued")
    assert await registry.wait_empty(1)
    await session.close()


async def test_what_counts_the_ends_cannot_keep_the_server():
    def raises(running: Running) -> None:
        raise ValueError("a counter cannot go down")

    session = counting()
    registry = Registry(on_finished=raises)
    request = Request(prompt="a", max_tokens=1)
    registry.start(Running(request=request, model=Model(served(session), None, 0, 0.0), api="", client=""))
    (task,) = registry._tasks
    with pytest.raises(ValueError, match="cannot go down"):
        await task
    assert await registry.wait_empty(0)
    await session.close()


def test_a_signal_before_the_first_socket_ends_the_server():
    log = AccessLog("text", False, lambda text: None)
    app = build(Settings(), [], log)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with inner(app):
            os.kill(os.getpid(), signal.SIGTERM)
            while not app.state.exo.leaving:
                await asyncio.sleep(0)
            yield

    app.router.lifespan_context = lifespan
    run.serve(app, listen.listen("127.0.0.1", 0), log)


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
ODD = {"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}


async def test_a_request_that_is_refused_leaves_no_file_behind():
    app = build(Settings(), [served(counting())], AccessLog("text", False, lambda text: None))
    source = {"type": "base64", "media_type": "image/png"}
    theirs = [{"type": "image", "source": {**source, "data": data}} for data in ("AAAA", "?")]
    before = files()
    (listener,) = listen.listen("127.0.0.1", 0)
    async with (
        run.running(app, [listener]),
        httpx.AsyncClient(base_url=listen.url_of(listener), trust_env=False) as client,
    ):
        for path, content in (
            ("/v1/chat/completions", [PICTURE, ODD]),
            ("/v1/messages/count_tokens", theirs),
        ):
            body = {"messages": [{"role": "user", "content": content}]}
            assert (await client.post(path, json=body)).status_code == 400
            assert files() == before
        assert (await client.post("/v1/messages/count_tokens", json={"messages": []})).status_code == 400


def files() -> set[Path]:
    return set(Path(spool._folder().name).iterdir())


@pytest.mark.parametrize("given", [1e12, "9" * 400, "9999999999h"])
async def test_a_model_that_is_kept_for_ages_is_kept_for_good(given: float | str):
    session = counting()
    app = build(Settings(), [served(session)], AccessLog("text", False, lambda text: None))
    (listener,) = listen.listen("127.0.0.1", 0)
    async with (
        run.running(app, [listener]),
        httpx.AsyncClient(base_url=listen.url_of(listener), trust_env=False) as client,
    ):
        kept = await client.post("/api/generate", json={"keep_alive": given, "stream": False})
        assert kept.json()["done_reason"] == "load"
        (row,) = (await client.get("/api/ps")).json()["models"]
        assert row["exo"]["idle_left_s"] is None


def test_an_error_without_code_or_words_is_logged_too():
    lines: list[str] = []
    model = Model(served(counting()), None, 0, 0.0)
    running = Running(request=Request(prompt="a"), model=model, api="test", client="here")
    running.put(Finished(id=running.id, reason="error", error={}))
    AccessLog("text", False, lines.append).exchange(
        client="here", method="POST", path="/", status=500, seconds=0.1, running=running
    )
    assert "outcome=error" in lines[0]


@pytest.mark.parametrize(
    ("protocol", "opener", "status"), [("step", "open_counting", 503), ("stream", "open_echo", 200)]
)
async def test_a_long_silence_is_a_stall_of_an_engine_that_steps(protocol: str, opener: str, status: int):
    session = Session(spec=spec(protocol, "inline", opener), model="count", path="count")
    app = build(Settings(), [served(session)], AccessLog("text", False, lambda text: None))
    (model,) = app.state.exo.hub.unique
    await model.session()
    running = Running(request=Request(prompt="a"), model=model, api="test", client="here")
    running.put(Text(id=running.id, text="a"))
    running.heard -= STALLED_AFTER_S + 1
    app.state.exo.requests.running[running.id] = running
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.get("/health")
    (row,) = answer.json()["models"]
    assert answer.status_code == status and row["silent_s"] > STALLED_AFTER_S
    assert (row["state"] == "stalled") is (status == 503)
