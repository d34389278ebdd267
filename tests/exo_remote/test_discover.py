"""What a server says of itself → its dialect, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from exocli import UpstreamError

from exo_remote import discover
from exo_remote.dialects import DIALECTS, by_listing
from tests.exo_remote.asking import ask, opened
from tests.exo_remote.upstream import Asked, Connection, Handler, Upstream, delta, mute, refuses, says


def answers(data: Any, **headers: str) -> Handler:
    async def answer(asked: Asked, connection: Connection) -> None:
        await connection.json(
            data, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )

    return answer


def listing(*owners: str | None, **headers: str) -> Handler:
    rows = [{"id": f"m{i}", **({"owned_by": owner} if owner else {})} for i, owner in enumerate(owners)]
    return answers({"data": rows}, **headers)


@pytest.mark.parametrize(
    ("routes", "name"),
    [
        ({"/v1/models": listing("mlx", x_request_id="1"), "/v1/requests": answers({"data": []})}, "exo"),
        ({"/v1/models": listing("vllm", x_request_id="1")}, "vllm"),
        ({"/v1/models": listing("llamacpp")}, "llama.cpp"),
        ({"/v1/models": listing("whoever", server="llama.cpp")}, "llama.cpp"),
        ({"/v1/models": listing("sglang")}, "sglang"),
        ({"/v1/models": listing("organization_owner")}, "lmstudio"),
        ({"/v1/models": listing("library"), "/api/version": answers({"version": "0.9"})}, "ollama"),
        ({"/v1/models": answers({"data": None}), "/api/version": answers({"version": "0.9"})}, "ollama"),
        ({"/v1/models": listing(None, server="BaseHTTP/0.6 Python/3.11")}, "mlx-lm"),
        ({"/v1/models": listing("system", x_request_id="1")}, "openai"),
        ({"/v1/models": listing("openai"), "/api/version": answers("no object")}, "openai"),
        ({"/v1/models": listing("openai"), "/api/version": answers(5)}, "openai"),
        ({"/v1/models": refuses(200, b"[" * 100_000)}, "openai"),
        ({"/v1/models": refuses(404, b"no")}, "openai"),
        ({"/v1/models": refuses(500, b"no")}, "openai"),
        ({"/v1/models": refuses(200, b"<html>")}, "openai"),
        ({"/v1/models": answers(["odd"])}, "openai"),
    ],
)
async def test_dialects(routes: dict[str, Handler], name: str, tmp_path: Path):
    async with Upstream(routes) as up, opened(up.url, tmp_path) as engine:
        facts = engine.describe()
        assert facts["dialect"] == name and facts["server"] == up.url
        assert {"progress", "cancel", "reasoning", "usage"} <= set(facts)
        assert engine.capabilities == DIALECTS[name].capabilities


async def test_a_listing_that_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(discover, "ANSWER_S", 0.05)
    script = says(delta("ok", finish="stop"))
    async with Upstream({"/v1/models": mute, "/v1/chat/completions": script}) as up:
        async with opened(up.url, tmp_path, "z") as engine:
            assert (await ask(engine)).text == "ok"
        assert (await up.wait_for("/v1/chat/completions")).json["model"] == "z"


async def test_a_sub_path_with_and_without_v1(tmp_path: Path):
    reply = says(delta("ok", finish="stop"))
    for root in ("/sub/v1", "/sub"):
        routes = {f"{root}/models": listing("x"), f"{root}/chat/completions": reply}
        async with Upstream(routes, models=None) as up, opened(f"{up.url}/sub/", tmp_path) as engine:
            assert (await ask(engine)).text == "ok"


async def test_a_server_that_loads_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(discover, "LOADING_EVERY_S", 0.01)
    left = 2

    async def script(asked: Asked, connection: Connection) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            await connection.whole(503, b'{"error": {"message": "Loading model"}}')
        else:
            await listing("llamacpp")(asked, connection)

    async with Upstream({"/v1/models": script}) as up, opened(up.url, tmp_path) as engine:
        assert engine.describe()["dialect"] == "llama.cpp"


async def test_a_dialect_that_is_given(tmp_path: Path):
    async with Upstream() as up, opened(up.url, tmp_path, dialect="sglang") as engine:
        assert engine.describe()["cancel"] == "abort"
        assert [asked.path for asked in up.asked] == ["/v1/models"]


async def test_403_ends_the_opening(tmp_path: Path):
    async with Upstream({"/v1/models": refuses(403, b"Forbidden")}) as up:
        with pytest.raises(UpstreamError, match="403: Forbidden"):
            await asyncio.wait_for(_open(up.url, tmp_path), 10)


async def _open(url: str, folder: Path) -> None:
    async with opened(url, folder):
        pass


def test_a_mixed_listing():
    assert by_listing("", [{"owned_by": "me"}, {"owned_by": "vllm"}]) is DIALECTS["vllm"]
    assert by_listing("nginx", []) is None
