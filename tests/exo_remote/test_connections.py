"""Connecting: retries, proxies, trust, keys, pooled connections that have gone stale."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import traceback
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from exocli import Unavailable, UpstreamError, UsageError
from keyring.backend import KeyringBackend

from exo_remote import client as client_module
from exo_remote.keys import Key
from exo_remote.options import Options
from exo_remote.urls import parse
from tests.exo_remote.asking import ask, opened
from tests.exo_remote.upstream import CHAT, Asked, Connection, Upstream, delta, refuses, says

PEM = Path(__file__).parent / "localhost.pem"
OK = says(delta("ok", finish="stop"), "[DONE]")
SECRET = "sk-hunter2hunter2"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BACKOFF_S", 0.01)


async def test_nobody_there(tmp_path: Path):
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=f"No server answers at {url}: Connection refused."):
        async with opened(url, tmp_path):
            pass


async def test_a_name_that_does_not_exist(tmp_path: Path):
    with pytest.raises(Unavailable, match=r"No server answers at http://no-such-host\.invalid:1: "):
        async with opened("http://no-such-host.invalid:1", tmp_path):
            pass


async def test_a_server_that_comes_up_between_two_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with Upstream({CHAT: OK}) as up:
        port = up.port
        async with opened(up.url, tmp_path) as engine:
            up._server.close()
            await up._server.wait_closed()
            monkeypatch.setattr(client_module, "BACKOFF_S", 0.2)
            task = asyncio.create_task(ask(engine))
            await asyncio.sleep(0.05)
            up._server = await asyncio.start_server(up._serve, "127.0.0.1", port)
            assert (await task).text == "ok"


async def test_lost_and_found_again_as_another_kind(tmp_path: Path):
    async with Upstream({CHAT: OK}) as up, opened(up.url, tmp_path) as engine:
        up._server.close()
        await up._server.wait_closed()
        error = (await ask(engine)).error
        assert error["code"] == "unavailable" and up.url in error["message"]

        async def listing(asked: Asked, connection: Connection) -> None:
            await connection.json({"data": [{"id": "m", "owned_by": "vllm"}]})

        up.routes["/v1/models"] = listing
        up._server = await asyncio.start_server(up._serve, "127.0.0.1", up.port)
        assert (await ask(engine)).text == "ok"
        assert engine.describe()["dialect"] == "vllm"


async def test_a_pooled_connection_that_was_closed_is_replaced(tmp_path: Path):
    """The server closes it just as the next request is sent: nothing was begun, so it is sent again."""
    first = True

    async def script(asked: Asked, connection: Connection) -> None:
        nonlocal first
        if first:
            first = False
            body = b'{"choices": [{"message": {"content": "one"}, "finish_reason": "stop"}]}'
            await connection.whole(200, body, keep=True)
        elif up.connections == before:
            connection.reset()
        else:
            await OK(asked, connection)

    async with Upstream({CHAT: script}) as up, opened(up.url, tmp_path) as engine:
        assert (await ask(engine)).text == "one"
        before = up.connections
        assert (await ask(engine)).text == "ok"
        assert sum(a.path == CHAT for a in up.asked) == 3


async def test_a_pooled_connection_that_breaks_late_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The server had the request for a while, and may have died of it."""
    monkeypatch.setattr(client_module, "STALE_S", 0.05)

    async def script(asked: Asked, connection: Connection) -> None:
        if sum(a.path == CHAT for a in up.asked) == 1:
            body = b'{"choices": [{"message": {"content": "one"}, "finish_reason": "stop"}]}'
            await connection.whole(200, body, keep=True)
        else:
            await asyncio.sleep(0.1)
            connection.reset()

    async with Upstream({CHAT: script}) as up, opened(up.url, tmp_path) as engine:
        assert (await ask(engine)).text == "one"
        before = up.connections
        assert "broke off" in (await ask(engine)).error["message"]
        assert up.connections == before, "it was the pooled one"
        assert sum(a.path == CHAT for a in up.asked) == 2


async def test_a_fresh_connection_that_breaks_is_not_tried_again(tmp_path: Path):
    async def script(asked: Asked, connection: Connection) -> None:
        connection.reset()

    async with Upstream({CHAT: script}) as up, opened(up.url, tmp_path) as engine:
        assert "broke off" in (await ask(engine)).error["message"]
        assert sum(a.path == CHAT for a in up.asked) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_this_machine_is_never_behind_a_proxy(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dead = f"http://127.0.0.1:{free_port()}"
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, dead)
    address = "::1" if host == "[::1]" else "127.0.0.1"
    async with Upstream({CHAT: OK}, host=address) as up:
        url = f"http://{host}:{up.port}"
        async with opened(url, tmp_path) as engine:
            assert (await ask(engine)).text == "ok"


async def test_others_are_and_a_dead_proxy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", f"http://me:{SECRET}@127.0.0.1:{free_port()}")
    with pytest.raises(Unavailable, match=r"through the proxy 127\.0\.0\.1") as caught:
        async with opened("http://10.255.255.1", tmp_path):
            pass
    assert SECRET not in str(caught.value)
    monkeypatch.setenv("no_proxy", "10.255.255.1")
    assert client_module._proxy_for(parse("http://10.255.255.1")) is None


async def test_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def listing(asked: Asked, connection: Connection) -> None:
        await connection.json({"data": [{"id": "far"}]})

    async with Upstream({"http://far.example/v1/models": listing}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removeprefix("http://"))
        async with opened("http://far.example", tmp_path) as engine:
            assert engine.describe()["model"] == "far"


async def test_a_proxy_that_makes_no_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "gopher://x")
    with pytest.raises(UsageError, match="proxy"):
        async with opened("http://10.255.255.1", tmp_path):
            pass


async def test_certificates_are_verified(tmp_path: Path):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(PEM)
    async with Upstream({CHAT: OK}, tls=tls) as up:
        with pytest.raises(Unavailable, match=r"is not trusted: self.signed certificate; .* -o ca_file="):
            async with opened(up.url, tmp_path):
                pass
        async with opened(up.url, tmp_path, ca_file=str(PEM)) as engine:
            assert (await ask(engine)).text == "ok"
        with pytest.raises(UsageError, match=r"ca_file .*missing\.pem cannot be used: No such file"):
            async with opened(up.url, tmp_path, ca_file=str(tmp_path / "missing.pem")):
                pass
        (tmp_path / "no.pem").write_text("not a certificate")
        with pytest.raises(UsageError, match="PEM"):
            async with opened(up.url, tmp_path, ca_file=str(tmp_path / "no.pem")):
                pass


# -------------------------------------------------------------------------------------------- keys


class Ring(KeyringBackend):
    priority = 1  # type: ignore[assignment]

    def __init__(self, entries: dict[tuple[str, str], str]) -> None:
        super().__init__()
        self.entries = entries
        self.asked = 0

    def get_password(self, service: str, username: str) -> str | None:
        self.asked += 1
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring({})
    before = keyring.get_keyring()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


async def wants_key(asked: Asked, connection: Connection) -> None:
    if asked.headers.get("authorization") != f"Bearer {SECRET}":
        await connection.json({"error": {"message": "Wrong key."}}, 401)
    elif asked.path == CHAT:
        await OK(asked, connection)
    else:
        await connection.json({"data": [{"id": "m"}]})


async def test_where_keys_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: Ring):
    async with Upstream({CHAT: wants_key, "/v1/models": wants_key}) as up:
        with pytest.raises(UpstreamError, match=r"wants a key \(401: Wrong key\)"):
            async with opened(up.url, tmp_path):
                pass
        ring.entries["exo", up.url] = SECRET
        async with opened(up.url, tmp_path) as engine:
            assert (await ask(engine)).text == "ok"
        ring.entries.clear()
        async with opened(up.url, tmp_path, api_key=SECRET) as engine:
            assert (await ask(engine)).text == "ok"
        asked = ring.asked
        monkeypatch.setenv("EXO_REMOTE_API_KEY", f"{SECRET}\n")
        async with opened(up.url, tmp_path, api_key="other") as engine:
            assert (await ask(engine)).text == "ok"
        assert ring.asked == asked, "the keyring is asked only after a refusal"


async def test_exos_own_key_goes_to_this_machine_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EXO_API_KEY", f"{SECRET} second")
    assert Key(parse("http://localhost:1")).value == SECRET
    assert Key(parse("http://far.example")).value is None


def test_a_key_that_cannot_be_sent_is_not_repeated(monkeypatch: pytest.MonkeyPatch):
    for bad in ("hunter2 x", "hunter2\nX-Evil: 1", "hunter2é"):
        monkeypatch.setenv("EXO_REMOTE_API_KEY", bad)
        with pytest.raises(UsageError) as caught:
            Key(parse("http://x"))
        assert "hunter2" not in str(caught.value)


async def test_keys_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("EXO_REMOTE_API_KEY", SECRET)
    body = b'{"error": {"message": "broken"}}'
    async with Upstream({CHAT: refuses(500, body)}) as up, opened(up.url, tmp_path, api_key=SECRET) as engine:
        got = await ask(engine)
        shown = [repr(got.events), repr(vars(engine)), repr(engine.describe()), repr(Options(api_key=SECRET))]
        monkeypatch.setattr(engine, "_follow", None)
        try:
            await ask(engine)
        except TypeError as error:
            shown.append(
                "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
            )
    assert caplog.records and len(shown) == 5
    assert SECRET not in caplog.text and not any(SECRET in text for text in shown)
