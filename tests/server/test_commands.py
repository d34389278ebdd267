"""`exo ps`, `exo cancel` and `exo stop` against a running server, as a user types them."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from exocli.cli.main import main

from tests.server.apis import CHAT
from tests.server.serving import Serving, environment

KEY = "the-key-of-the-commands"
HEADERS = {"x-api-key": KEY}


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Serving]:
    with Serving(home, "--idle-unload", "600", env={"EXO_API_KEY": KEY}) as serving:
        serving.post(CHAT.path, CHAT.body("wake up"), headers=HEADERS)
        yield serving


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


Exo = Callable[..., Result]


@pytest.fixture
def exo(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Exo]:
    """`exo ARGS`, in this process: what it prints and its exit code."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*args: str, url: str = "", key: str = KEY) -> Result:
        for name, value in environment(home, EXO_API_KEY=key, EXO_URL=url).items():
            if name.startswith("EXO_"):
                monkeypatch.setenv(name, value)
        code = main(list(args))
        out = capsys.readouterr()
        return Result(code, out.out, out.err)

    yield run
    signal.signal(signal.SIGTERM, before)


def forever(server: Serving, name: str) -> threading.Thread:
    def ask() -> None:
        server.post(CHAT.path, CHAT.ask("forever", stream=True), headers={**HEADERS, "X-Request-Id": name})

    thread = threading.Thread(target=ask)
    thread.start()
    server.wait_requests(lambda rows: any(r["id"] == name and r["tokens"] > 2 for r in rows), headers=HEADERS)
    return thread


def test_ps_shows_models_and_requests(server: Serving, exo: Exo):
    thread = forever(server, "ps-request")
    table = exo("ps", url=server.url)
    assert table.returncode == 0, table.stderr
    lines = table.stdout.splitlines()
    assert lines[0].split() == ["MODEL", "BACKEND", "MEMORY", "KV", "TOKENS", "UNLOADS", "IN"]
    assert lines[1].split()[:2] == ["scripted:latest", "scripted"]
    assert any(line.split()[:5] == ["ps-request", "127.0.0.1", "scripted", "decode", "1/1"] for line in lines)
    rows: Any = json.loads(exo("ps", "--json", "--url", f"{server.url}/v1/").stdout)
    assert rows["requests"][0]["id"] == "ps-request"
    assert rows["models"][0]["size_vram"] == 1234
    assert exo("ps").stdout.splitlines()[:2] == lines[:2], "the server of this machine is found"
    exo("cancel", "--all", url=server.url)
    thread.join(5)


def test_cancel_by_prefix_by_the_apis_id_and_all(server: Serving, exo: Exo):
    thread = forever(server, "alpha-one")
    shown = exo("cancel", "alpha", url=server.url)
    thread.join(5)
    assert shown.returncode == 0
    assert shown.stdout.startswith("alpha-one cancelled in decode (1 of 1 prompt tokens done, 1 tokens of")
    late = exo("cancel", "alpha-one", url=server.url)
    assert late.stdout == "alpha-one was over already (cancelled).\n"
    thread = forever(server, "beta")
    receipt = json.loads(exo("cancel", "chatcmpl-beta", "--json", url=server.url).stdout)
    thread.join(5)
    assert (receipt["id"], receipt["state"]) == ("beta", "cancelled")
    threads = [forever(server, "twin-1"), forever(server, "twin-2")]
    unclear = exo("cancel", "twin", url=server.url)
    assert unclear.returncode == 1
    assert "beginning of 2 requests" in unclear.stderr
    everything = exo("cancel", "--all", url=server.url)
    for thread in threads:
        thread.join(5)
    assert everything.stdout.count("cancelled in decode") == 2
    assert exo("cancel", "--all", url=server.url).stdout == "Nothing was running.\n"


def test_mistakes_are_one_line(server: Serving, exo: Exo):
    assert exo("cancel", url=server.url).returncode == 2
    assert exo("cancel", "x", "--all", url=server.url).returncode == 2
    alone = exo("bench", "--peer", "other --port {port}")
    assert alone.returncode == 2 and "--serve" in alone.stderr
    unknown = exo("cancel", "nobody", url=server.url)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
    assert 'No request "nobody"' in unknown.stderr
    denied = exo("ps", url=server.url, key="")
    assert denied.returncode == 1
    assert "asks for a key: set EXO_API_KEY" in denied.stderr
    assert "does not take the key in EXO_API_KEY" in exo("ps", url=server.url, key="another-key").stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        nobody = exo("ps", url=f"127.0.0.1:{port}")
    assert nobody.returncode == 3
    assert "exo serve" in nobody.stderr


def test_stop_unloads_now_or_once_idle(server: Serving, exo: Exo):
    thread = forever(server, "busy")
    waits = exo("stop", "scripted", url=server.url)
    assert waits.stdout == "scripted will be unloaded once its request is done.\n"
    exo("cancel", "busy", url=server.url)
    thread.join(5)
    assert json.loads(exo("ps", "--json", url=server.url).stdout)["models"] == []
    server.post(CHAT.path, CHAT.body("back again"), headers=HEADERS)
    assert exo("stop", "scripted", url=server.url).stdout == "scripted is unloaded.\n"
    assert json.loads(exo("ps", "--json", url=server.url).stdout)["models"] == []
    unknown = exo("stop", "nothing", url=server.url)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (3, 1)


def test_this_machine_is_never_asked_through_a_proxy(
    server: Serving, exo: Exo, monkeypatch: pytest.MonkeyPatch
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, dead)
        assert exo("ps", url=server.url).returncode == 0
