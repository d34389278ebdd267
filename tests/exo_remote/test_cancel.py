"""A cancel at every moment and for every kind of server: it stops, and the receipt says what is known."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from exocli import Cancelled, CancelToken, Finished, Progress, Receipt, StreamEngine, Text

from exo_remote import stopping
from exo_remote.opening import open_engine
from tests.exo_remote.asking import ask, chat, context, opened
from tests.exo_remote.upstream import (
    CHAT,
    Asked,
    Connection,
    Handler,
    Upstream,
    delta,
    hangs,
    mute,
    refuses,
    says,
)

PROGRESS = {"choices": [], "prompt_progress": {"processed": 4, "total": 9, "cache": 1}}
SAID: dict[str, Any] = {
    "state": "cancelled",
    "phase": "prefill",
    "processed": 4,
    "total": 9,
    "kept_tokens": 4,
    "ranks": 3,
    "latency_ms": 5.0,
    "confirmed": True,
    "killed": False,
}


def is_progress(event: Any) -> bool:
    return isinstance(event, Progress)


def is_text(event: Any) -> bool:
    return isinstance(event, Text)


async def in_time(closed: asyncio.Event) -> None:
    async with asyncio.timeout(1):
        await closed.wait()


@asynccontextmanager
async def server(
    folder: Path, script: Handler, dialect: str = "openai", **routes: Handler
) -> AsyncIterator[tuple[Upstream, StreamEngine]]:
    more = {f"/{name}": route for name, route in routes.items()}
    async with Upstream({CHAT: script, **more}) as up, opened(up.url, folder, dialect=dialect) as engine:
        yield up, engine


async def test_before_anything_was_sent(tmp_path: Path):
    async with server(tmp_path, mute) as (up, engine):
        cancel = CancelToken()
        cancel.cancel()
        receipt = (await ask(engine, cancel=cancel)).finished.cancel
        assert receipt is not None and (receipt.phase, receipt.ranks, receipt.confirmed) == (
            "queued",
            0,
            True,
        )
        assert all(asked.path != CHAT for asked in up.asked)


@pytest.mark.parametrize("script", [mute, hangs()])
async def test_in_silence_from_another_thread(script: Handler, tmp_path: Path):
    async with server(tmp_path, script) as (up, engine):
        cancel = CancelToken()
        task = asyncio.create_task(ask(engine, cancel=cancel))
        asked = await up.wait_for(CHAT)
        threading.Thread(target=cancel.cancel).start()
        finished = (await task).finished
        await in_time(asked.closed)
        assert finished.reason == "cancelled" and finished.cancel is not None
        assert finished.cancel.latency_ms < 500
        assert finished.cancel == Receipt(
            phase="prefill",
            kept_tokens=None,
            ranks=None,
            confirmed=False,
            latency_ms=finished.cancel.latency_ms,
        )


LOADING = refuses(503, b'{"error": {"message": "Loading model"}}')


async def test_while_a_lost_server_loads_its_model_again(tmp_path: Path):
    async with Upstream() as up, opened(up.url, tmp_path) as engine:
        up._server.close()
        await up._server.wait_closed()
        assert (await ask(engine)).error["code"] == "unavailable"
        up.routes["/v1/models"] = LOADING
        up._server = await asyncio.start_server(up._serve, "127.0.0.1", up.port)
        cancel = CancelToken()
        asking = asyncio.create_task(ask(engine, cancel=cancel))
        await up.wait_for("/v1/models", 2)
        cancel.cancel()
        async with asyncio.timeout(2):
            finished = (await asking).finished
        assert finished.reason == "cancelled" and finished.cancel is not None
        assert (finished.cancel.phase, finished.cancel.ranks) == ("queued", 0)


async def test_while_the_engine_is_opened(tmp_path: Path):
    """An inline load cannot be killed: it has to end by itself."""
    async with Upstream({"/v1/models": LOADING}) as up:
        given = context(up.url, tmp_path)
        opening = asyncio.create_task(asyncio.to_thread(open_engine, given))
        await up.wait_for("/v1/models")
        given.cancel.cancel()
        async with asyncio.timeout(2):
            with pytest.raises(Cancelled):
                await opening


async def test_in_prefill_and_in_decode(tmp_path: Path):
    async with server(tmp_path, hangs(PROGRESS)) as (up, engine):
        receipt = (await ask(engine, at=is_progress)).finished.cancel
        await in_time((await up.wait_for(CHAT)).closed)
        assert receipt is not None and not receipt.confirmed
        assert (receipt.phase, receipt.processed, receipt.total) == ("prefill", 4, 9)
        up.routes[CHAT] = hangs(PROGRESS, delta("x"))
        got = await ask(engine, at=is_text)
        await in_time((await up.wait_for(CHAT, 2)).closed)
        receipt = got.finished.cancel
        assert got.text == "x" and receipt is not None
        assert (receipt.phase, receipt.processed, receipt.total) == ("decode", 9, 9)


async def test_a_reader_that_leaves_closes_the_connection(tmp_path: Path):
    async with server(tmp_path, hangs(delta("x"))) as (up, engine):
        events = engine.stream(chat(), CancelToken())
        async for event in events:
            if isinstance(event, Text):
                break
        await events.aclose()  # type: ignore[attr-defined]
        await in_time((await up.wait_for(CHAT)).closed)


async def test_the_end_came_first(tmp_path: Path):
    async with server(tmp_path, says(delta("x", finish="stop"), "[DONE]")) as (_, engine):
        got = await ask(engine, at=lambda event: isinstance(event, Finished))
        assert got.finished.reason == "stop"


# ---------------------------------------------------------------------------------- an exo server


class Exo:
    """The two routes of an exo server: the reply hangs until its cancel, which answers `answers`."""

    def __init__(self, *answers: tuple[int, dict[str, Any]], ends: list[Any] | None = None) -> None:
        self.answers = list(answers)
        self.ends = ends
        self.cancelled = asyncio.Event()
        self.ids: list[str] = []

    async def reply(self, asked: Asked, connection: Connection) -> None:
        self.ids.append(asked.headers["x-request-id"])
        await connection.head(headers={"X-Request-Id": self.ids[-1]})
        await connection.stream(PROGRESS)
        await self.cancelled.wait()
        if self.ends is None:
            await asked.closed.wait()
        await connection.stream(*(self.ends or ()))

    async def cancel(self, asked: Asked, connection: Connection) -> None:
        status, data = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.cancelled.set()
        await connection.json(data, status)


@asynccontextmanager
async def exo_server(folder: Path, exo: Exo) -> AsyncIterator[tuple[Upstream, StreamEngine]]:
    async with server(folder, exo.reply, "exo") as (up, engine):

        async def any_cancel(asked: Asked, connection: Connection) -> None:
            await exo.cancel(asked, connection)

        class Routes(dict[str, Handler]):
            def get(self, path: str, default: Any = None) -> Any:
                return any_cancel if path.endswith("/cancel") else super().get(path, default)

        up.routes = Routes(up.routes)
        yield up, engine


async def test_exos_receipt_and_usage(tmp_path: Path):
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 0}}
    exo = Exo((200, SAID), ends=[{**delta(finish="length"), "exo": {"cancel": SAID}}, usage, "[DONE]"])
    async with exo_server(tmp_path, exo) as (up, engine):
        finished = (await ask(engine, at=is_progress)).finished
        receipt = finished.cancel
        assert finished.reason == "cancelled" and finished.usage.prompt_tokens == 9 and receipt is not None
        assert (receipt.ranks, receipt.kept_tokens, receipt.confirmed) == (3, 4, True)
        (cancel,) = [a for a in up.asked if a.path.endswith("/cancel")]
        assert cancel.path == f"/v1/requests/{exo.ids[0]}/cancel"


async def test_exos_ids_are_unique_and_can_be_found(tmp_path: Path):
    exo = Exo((200, SAID))
    async with exo_server(tmp_path, exo) as (_, engine):
        for _ in range(2):
            exo.cancelled.clear()
            await ask(engine, chat(id="mine"), at=is_progress)
    assert len({*exo.ids}) == 2 and all(name.startswith("mine-") for name in exo.ids)


async def test_exo_still_cancelling_is_not_confirmed(tmp_path: Path):
    exo = Exo((202, {"state": "cancelling"}))
    async with exo_server(tmp_path, exo) as (up, engine):
        receipt = (await ask(engine, at=is_progress)).finished.cancel
        assert receipt is not None and not receipt.confirmed and receipt.ranks is None
        await in_time((await up.wait_for(CHAT)).closed)


async def test_exo_had_ended_before_the_cancel(tmp_path: Path):
    exo = Exo((200, {"state": "finished", "reason": "stop"}), ends=[delta("all", finish="stop"), "[DONE]"])
    async with exo_server(tmp_path, exo) as (_, engine):
        assert (await ask(engine, at=is_progress)).finished.reason == "stop"


async def test_a_cancel_that_overtakes_its_request_is_sent_again(tmp_path: Path):
    exo = Exo((404, {"error": {"message": "No request"}}), (200, SAID))

    async def not_yet(asked: Asked, connection: Connection) -> None:
        await exo.cancelled.wait()
        await asked.closed.wait()

    async with exo_server(tmp_path, exo) as (up, engine):
        up.routes[CHAT] = not_yet
        cancel = CancelToken()
        task = asyncio.create_task(ask(engine, cancel=cancel))
        await up.wait_for(CHAT)
        cancel.cancel()
        receipt = (await task).finished.cancel
        assert receipt is not None and receipt.confirmed and receipt.ranks == 3


async def test_a_server_that_does_not_answer_the_cancel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stopping, "RECEIPT_S", 0.05)
    exo = Exo((200, SAID))
    async with exo_server(tmp_path, exo) as (up, engine):
        exo.cancel = lambda asked, connection: mute(asked, connection)  # type: ignore[method-assign]
        got = await ask(engine, at=is_progress)
        assert got.finished.cancel is not None and not got.finished.cancel.confirmed
        await in_time((await up.wait_for(CHAT)).closed)


# ------------------------------------------------------------------------------------ other servers


async def test_llama_cpp_is_seen_to_be_idle(tmp_path: Path):
    left = 3

    async def slots(asked: Asked, connection: Connection) -> None:
        nonlocal left
        left -= 1
        await connection.json([{"id": 0, "is_processing": left > 0}])

    async with server(tmp_path, hangs(PROGRESS), "llama.cpp", slots=slots) as (up, engine):
        receipt = (await ask(engine, at=is_progress)).finished.cancel
        assert receipt is not None and receipt.confirmed and left == 0
        await in_time((await up.wait_for(CHAT)).closed)


@pytest.mark.parametrize("answer", [(200, [{"is_processing": True}]), (501, {"error": "disabled"})])
async def test_llama_cpp_that_stays_busy_or_hides_its_slots(
    answer: tuple[int, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stopping, "IDLE_S", 0.1)

    async def slots(asked: Asked, connection: Connection) -> None:
        await connection.json(answer[1], answer[0])

    async with server(tmp_path, hangs(PROGRESS), "llama.cpp", slots=slots) as (_, engine):
        receipt = (await ask(engine, at=is_progress)).finished.cancel
        assert receipt is not None and not receipt.confirmed


@pytest.mark.parametrize("status", [200, 404])
async def test_sglang_is_told_to_abort(status: int, tmp_path: Path):
    async def abort(asked: Asked, connection: Connection) -> None:
        await connection.json({}, status)

    async with server(tmp_path, hangs(PROGRESS), "sglang", abort_request=abort) as (up, engine):
        receipt = (await ask(engine, at=is_progress)).finished.cancel
        assert receipt is not None and receipt.confirmed is (status == 200)
        sent = await up.wait_for(CHAT)
        assert (await up.wait_for("/abort_request")).json == {"rid": sent.json["rid"]}
        await in_time(sent.closed)
