"""exo to exo, over real servers in processes of their own: replies, cancels, gateways, a killed server."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from exocli import CancelToken, Progress, Reasoning, Request, Text, ToolCall, plugins
from exocli.cli.main import main
from exocli.cli.params import complete_model
from exocli.runtime.session import Session

from tests.chat.terminal import CTRL_C, CTRL_D, ENTER, Terminal
from tests.exo_remote.asking import Answer, chat
from tests.server.serving import Serving, data_of, environment
from tests.server.serving import chat as body

LONG = " ".join(["word"] * 600 + ["slow"] * 300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateways")


@pytest.fixture(scope="module")
def chain(folder: Path) -> Iterator[list[Serving]]:
    """A server, a gateway to it, and a gateway to that one; the last one is what clients talk to."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Serving(folder / "0"))]
        for number in (1, 2):
            flags = ("-o", f"url={servers[-1].url}/v1/")
            servers.append(stack.enter_context(Serving(folder / str(number), *flags, backend="remote")))
        yield servers


@pytest.fixture
async def session(chain: list[Serving]) -> AsyncIterator[Session]:
    """Through both gateways."""
    async with remote(chain[-1].url) as opened:
        yield opened


def remote(url: str, model: str = "scripted") -> Session:
    return Session(spec=plugins.backend("remote"), model=model, path=model, options={"url": url})


async def ask(session: Session, request: Request, at: type[Any] | None = None, count: int = 1) -> Answer:
    """Cancelled at the count-th event of type `at`."""
    got, cancel, left = Answer(), CancelToken(), count
    async for event in session.stream(request, cancel):
        got.events.append(event)
        if at is not None and isinstance(event, at):
            left -= 1
            if not left:
                cancel.cancel()
    return got


async def test_everything_comes_through_two_gateways(chain: list[Serving], session: Session):
    assert [model["id"] for model in chain[-1].get("/v1/models").json()["data"]] == ["scripted"]
    script = [["reasoning", "hm"], ["text", "a\u2028"], ["text", "b"], ["tool", "f", '{"x": 1}'], ["stop"]]
    got = await ask(session, chat(json.dumps(script), logprobs=1))
    assert [e.text for e in got.of(Reasoning)] == ["hm"] and got.text == "a\u2028b"
    (call,) = got.of(ToolCall)
    assert (call.name, call.arguments) == ("f", '{"x": 1}')
    assert got.of(Text)[0].logprobs[0]["logprob"] == -0.5
    progress = got.of(Progress)
    assert progress and progress[-1].processed == progress[-1].total == got.finished.usage.prompt_tokens
    assert got.finished.reason in ("stop", "tool_calls") and got.finished.usage.completion_tokens == 4


async def test_a_cancel_in_prefill_brings_the_first_servers_receipt(chain: list[Serving], session: Session):
    got = await ask(session, chat(LONG), Progress, 3)
    receipt = got.finished.cancel
    assert got.finished.reason == "cancelled" and receipt is not None
    assert receipt.confirmed and receipt.phase == "prefill" and receipt.ranks == 1 and not receipt.killed
    assert 0 < receipt.processed < receipt.total == 900 and receipt.kept_tokens == receipt.processed
    assert receipt.latency_ms < 1500
    for server in chain:
        assert server.requests() == []
    again = await ask(session, chat(LONG), Progress)
    assert again.of(Progress)[0].cached >= receipt.processed - 1, "what was kept serves the next one"


async def test_a_cancel_in_decode(chain: list[Serving], session: Session):
    got = await ask(session, chat("go on forever"), Text, 3)
    receipt = got.finished.cancel
    assert receipt is not None and receipt.confirmed and receipt.phase == "decode"
    assert got.text.startswith("go on forever") and got.finished.usage.completion_tokens >= 3
    assert all(server.requests() == [] for server in chain)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_reaches_the_first_server_in_a_second(chain: list[Serving], stream: bool):
    connection = chain[-1].open("/v1/chat/completions", body("go on forever", stream=stream))
    rows = chain[0].wait_requests(lambda rows: bool(rows) and rows[0]["tokens"] > 2)
    assert rows[0]["phase"] == "decode"
    connection.close()
    left = time.monotonic()
    chain[0].wait_idle(3)
    assert time.monotonic() - left < 1
    chain[-1].wait_idle(3)


async def test_a_cancel_by_id_at_the_gateway_and_at_the_server(chain: list[Serving]):
    for server in (chain[-1], chain[0]):
        with (
            chain[-1].client() as client,
            client.stream("POST", "/v1/chat/completions", json=body("go on forever", stream=True)) as reply,
        ):
            (row,) = server.wait_requests(lambda rows: bool(rows) and rows[0]["tokens"] > 2)
            said = server.post(f"/v1/requests/{row['id']}/cancel").json()
            assert said["state"] == "cancelled" and said["confirmed"], said
            last = [chunk for chunk in data_of(reply.iter_lines()) if chunk.get("choices")][-1]
        assert last["choices"][0]["finish_reason"] == "length"
        assert last["exo"]["cancel"]["confirmed"] is True


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("please refuse", 400, "This word is refused"),
        ("word " * 6000, 400, "The prompt has 6000 tokens"),
        ("raise", 500, "the word was raise"),
    ],
)
async def test_errors_keep_their_status_and_text(chain: list[Serving], text: str, status: int, said: str):
    direct = chain[0].post("/v1/chat/completions", body(text))
    through = chain[-1].post("/v1/chat/completions", body(text))
    assert (direct.status_code, through.status_code) == (status, status)
    assert said in through.json()["error"]["message"]


async def test_a_wrong_model_says_which_exist(chain: list[Serving]):
    async with remote(chain[0].url, "nope") as session:
        error = (await ask(session, chat())).finished.error
    assert error is not None and error["code"] == "model_not_found"
    assert f'{chain[0].url} has no model "nope"; it has: scripted.' == error["message"]


# ------------------------------------------------------------------------------ a server that dies


def test_the_chat_survives_its_server_and_finds_it_again(folder: Path, home: Path):
    first = Serving(folder / "dies")
    port = first.url.rpartition(":")[2]
    command = [sys.executable, "-m", "exocli", "chat", "-b", "remote", "-o", f"url={first.url}"]
    env = {**environment(folder / "chat"), "TERM": "xterm-256color", "EXO_HOME": str(home)}
    terminal = Terminal(command, env)
    try:
        terminal.prompt()
        terminal.send("go on forever" + ENTER)
        terminal.until("forevergo on forever")
        os.killpg(first.process.pid, signal.SIGKILL)
        terminal.until("^exo: The connection to http.* broke off")
        terminal.prompt()
        with Serving(folder / "dies", "--port", port):
            terminal.send("still there" + ENTER)
            terminal.until("therestill there")
            terminal.send(CTRL_C)
            terminal.prompt()
            terminal.send(CTRL_D)
            assert terminal.ended() == 0
    finally:
        terminal.close()
        first.close()


# ------------------------------------------------------------------------------- command lines


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Exo = Callable[..., Done]


@pytest.fixture
def exo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Exo]:
    """Runs a command line in this process."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    before = signal.getsignal(signal.SIGTERM)

    def run(*args: str) -> Done:
        capsys.readouterr()
        code = main(args)
        return Done(code, *capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, before)


def test_run_uses_the_server_of_this_machine(folder: Path, exo: Exo, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EXO_HOME", str(folder / "local"))
    with Serving(folder / "local", env={"EXO_API_KEY": "sk-one-or-two"}) as server:
        shut_out = exo("run", "--no-stdin", "-m", "scripted", "hello")
        assert shut_out.code == 3 and "Using" not in shut_out.err
        monkeypatch.setenv("EXO_API_KEY", "sk-one-or-two")
        done = exo("run", "--no-stdin", "-m", "scripted", "hello there")
        told = f"Using exo serve at {server.url}, which has scripted (--local declines).\n"
        assert (done.code, done.out, done.err) == (0, "hello there\n", told)
        (folder / "said").write_text("good morning\n")
        with (folder / "said").open() as said:
            monkeypatch.setattr(sys, "stdin", said)
            chatted = exo("chat", "-m", "scripted", "--no-save")
        assert chatted.code == 0 and "good morning" in chatted.out and told in chatted.err
        local = exo("run", "--no-stdin", "-m", "scripted", "--local", "hello")
        assert local.code == 3 and "Using" not in local.err
        file = folder / "local" / "run" / "serve.json"
        assert "sk-one" not in file.read_text()
    assert not file.exists()
    assert exo("run", "--no-stdin", "-m", "scripted", "hello").code == 3


def test_what_was_seen_is_listed_and_completed(chain: list[Serving], exo: Exo):
    url = chain[0].url
    done = exo("-v", "run", "--no-stdin", "-b", "remote", "-o", f"url={url}", "hello")
    assert done.out == "hello\n" and "dialect: exo" in done.err and "cancel: receipt" in done.err
    rows = json.loads(exo("backends", "--json").out)
    (row,) = [row for row in rows if row["name"] == "remote"]
    (server,) = row["servers"]
    assert server["url"] == url and server["dialect"] == "exo" and server["models"] == ["scripted"]
    assert "api_key" not in row["options"] and row["options"]["url"]
    models = json.loads(exo("models", "list", "--json").out)
    (model,) = [model for model in models if model["backend"] == "remote"]
    assert (model["name"], model["source"], model["here"]) == ("scripted", url, False)
    command = click.Command("x", params=[click.Option(["-b", "backend"])])
    for backend, offered in (("remote", ["scripted"]), ("mlx", [])):
        context = click.Context(command)
        context.params = {"backend": backend}
        found = complete_model(context, command.params[0], "scr")
        assert [item.value for item in found] == offered


def test_a_configured_model_yields_to_the_servers_own(chain: list[Serving], exo: Exo, home: Path):
    home.mkdir()
    (home / "config.toml").write_text('model = "smollm2"\n')
    done = exo("run", "--no-stdin", "-b", "remote", "-o", f"url={chain[0].url}", "hello")
    assert (done.code, done.out) == (0, "hello\n")
    wrong = exo("run", "--no-stdin", "-m", "nope", "-b", "remote", "-o", f"url={chain[0].url}", "hello")
    assert wrong.code == 3 and "it has: scripted." in wrong.err


def test_what_cannot_be_done(exo: Exo):
    done = exo("run", "--no-stdin", "-b", "remote", "-o", "api_key=sk-hunter2", "hello")
    assert done.code == 2 and "secret" in done.err and "hunter2" not in done.err
    done = exo("run", "--no-stdin", "-b", "remote", "-o", "url=http://127.0.0.1:9", "hello")
    assert (done.code, done.out) == (3, "")
    assert done.err == "exo: No server answers at http://127.0.0.1:9: Connection refused.\n"
