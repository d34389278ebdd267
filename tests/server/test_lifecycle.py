"""Start, loading, unloading, limits, health, and the end by the contract's table, on real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.apis import CHAT, OLLAMA_CHAT, Api
from tests.server.serving import Serving, environment
from tests.server.sse import parse
from tests.support.runtime import wait_gone

FOREVER = "on and on forever "


class Streaming(threading.Thread):
    """A stream that is read to its end; `raw` after `join`."""

    def __init__(self, server: Serving, api: Api, text: str, name: str = "", **more: Any) -> None:
        super().__init__()
        headers = {"X-Request-Id": name} if name else {}
        self._ask = (server, api, api.ask(text, stream=True, **more), headers)
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        server, api, body, headers = self._ask
        self.answer = server.post(api.path, body, headers=headers)


# ---------------------------------------------------------------------------------------- the start


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_busy_port_is_told_within_a_second_of_start_up_and_before_any_load(home: Path, host: str):
    def seconds(*args: str) -> tuple[float, subprocess.CompletedProcess[str]]:
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "exocli", *args],
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return time.monotonic() - begin, done

    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        serve = ("serve", "-b", "scripted", "-o", "load_s=60", "--host", host, "--port", str(port))
        for attempt in range(3):
            took, done = seconds(*serve)
            assert done.returncode == 1
            assert f"Port {port} of 127.0.0.1 is in use" in done.stderr
            assert "Traceback" not in done.stderr
            if took < 1.0 or took - seconds("--version")[0] < 1.0:  # beyond what starting Python takes
                return
            assert attempt < 2, took  # a busy machine may keep either of them waiting


# ------------------------------------------------------------------------------- loading, unloading


CONFIG = """
[models."claude-*"]
model = "scripted"
backend = "scripted"
system = "be brief"
options = {load_s = 1.0}

[models.broken]
model = "scripted"
backend = "scripted"
options = {fail_open = "no such thing"}
"""


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server of a model that takes a second to load and of one that cannot."""
    folder = tmp_path_factory.mktemp("configured")
    (folder / "config.toml").write_text(CONFIG)
    with Serving(folder) as serving:
        yield serving


def unload(serving: Serving, model: str) -> None:
    gone = serving.post("/api/chat", {"model": model, "keep_alive": 0, "stream": False}).json()
    assert gone["done_reason"] == "unload"
    wait_unloaded(serving)


def test_a_stream_answers_at_once_while_the_model_loads_and_fails_in_the_stream(configured: Serving):
    assert {m["id"] for m in configured.get("/v1/models").json()["data"]} == {
        "scripted",
        "claude-*",
        "broken",
    }
    asked = CHAT.ask("hi", stream=True, model="claude-opus-9", stream_options={"include_usage": True})
    with configured.client() as client, client.stream("POST", CHAT.path, json=asked) as reply:
        assert reply.status_code == 200
        raw = reply.read()
    comments: list[str] = []
    usage = json.loads(parse(raw, comments)[-2].data)
    assert sum(c.startswith("loading") for c in comments) >= 2
    assert CHAT.read_stream(raw)[:3] == ("hi", "stop", True)
    # By a pattern's own name, with the config's system message.
    assert (usage["model"], usage["usage"]["prompt_tokens"]) == ("claude-opus-9", 3)
    unload(configured, "claude-opus-9")
    events = parse(configured.post(CHAT.path, CHAT.ask("hi", stream=True, model="broken")).content)
    assert '"message":"no such thing"' in events[-2].data
    assert configured.post(CHAT.path, CHAT.ask("hi", stream=False, model="broken")).status_code == 400


def test_loading_can_be_cancelled_and_waited_for_by_several(configured: Serving):
    first = Streaming(configured, CHAT, "first", name="first", model="claude-1")
    second = Streaming(configured, OLLAMA_CHAT, "second", model="claude-2")
    configured.wait_requests(lambda rows: len(rows) == 2 and all(r["phase"] == "loading" for r in rows))
    states = {m["name"]: m["state"] for m in configured.get("/health").json()["models"]}
    assert states["claude-*"] == "loading"
    receipt = configured.post("/v1/requests/first/cancel").json()
    assert (receipt["state"], receipt["phase"]) == ("cancelled", "loading")
    for one in (first, second):
        one.join(10)
    assert CHAT.read_stream(first.answer.content)[1:3] == ("length", True)
    assert OLLAMA_CHAT.read_stream(second.answer.content)[0] == "second"
    waited = json.loads(second.answer.text.splitlines()[-1])["load_duration"] / 1e9
    assert 0.5 < waited < 10, "the load took a second, and it came early in it"
    again = {"prompt": "hi", "stream": False, "model": "claude-3"}
    assert configured.post("/api/generate", again).json()["load_duration"] == 0


def test_several_models_idle_unload_and_keep_alive(home: Path):
    with Serving(home, "-m", "one", "-m", "two", "--idle-unload", "0.2") as serving:
        assert [m["id"] for m in serving.get("/v1/models").json()["data"]] == ["one", "two"]
        assert serving.get("/api/ps").json()["models"] == []
        assert serving.post(CHAT.path, CHAT.ask("hi", stream=False, model="two")).json()["model"] == "two"
        wait_unloaded(serving)
        stay = OLLAMA_CHAT.ask("hi", stream=False, model="one", keep_alive=-1)
        assert serving.post("/api/chat", stay).status_code == 200
        loaded = serving.get("/api/ps").json()["models"]
        assert [m["name"] for m in loaded] == ["one:latest"]
        assert loaded[0]["exo"]["idle_left_s"] is None
        gone = serving.post("/api/chat", {"model": "one", "keep_alive": 0, "stream": False}).json()
        assert gone["done_reason"] == "unload"
        wait_unloaded(serving)
        loaded_again = serving.post("/api/generate", {"model": "one", "stream": False}).json()
        assert loaded_again["done_reason"] == "load"
        assert serving.get("/health").json()["models"][0]["state"] == "loaded"


def wait_unloaded(serving: Serving) -> None:
    deadline = time.monotonic() + 5
    while serving.get("/api/ps").json()["models"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --------------------------------------------------------------------------------------------- limits


@pytest.fixture(scope="module")
def narrow(home: Path) -> Iterator[Serving]:
    """A server by the name localhost that runs one request and lets one wait."""
    with Serving(home, "--host", "localhost", "--max-concurrency", "1", "--max-queue", "1") as serving:
        serving.post(CHAT.path, CHAT.body("wake up"))
        yield serving


def test_localhost_is_both_of_its_addresses(narrow: Serving):
    for address in ("127.0.0.1", "::1"):
        if address == "::1" and not socket.has_ipv6:
            continue
        try:
            socket.create_connection((address, narrow.port), timeout=5).close()
        except OSError as error:
            if address == "127.0.0.1" or error.errno not in (97, 99):  # no IPv6 on this machine
                raise


def test_the_queue_is_bounded_told_and_recovers(narrow: Serving):
    """Limit 1 + 1, six at once: four are refused at once, and the slots come back."""
    for api in (CHAT, OLLAMA_CHAT):
        running = [Streaming(narrow, api, FOREVER) for _ in range(6)]
        refused = wait_refused(running, 4)
        for one in refused:
            assert one.answer.status_code == 429
            assert int(one.answer.headers["retry-after"]) >= 1
            assert "1 running, 1 waiting" in api.message_of(one.answer.json())
        narrow.wait_requests(lambda rows: sorted(r["phase"] for r in rows) == ["decode", "queued"])
        narrow.post("/v1/requests/cancel")
        for one in running:
            one.join(5)
        assert narrow.post(CHAT.path, CHAT.body("free")).status_code == 200


def wait_refused(running: list[Streaming], count: int) -> list[Streaming]:
    deadline = time.monotonic() + 5
    while True:
        done = [one for one in running if one.answer is not None]
        if len(done) >= count:
            return done
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_queued_stream_tells_its_position(narrow: Serving):
    first = Streaming(narrow, CHAT, FOREVER, name="first")
    narrow.wait_requests(lambda rows: any(r["phase"] == "decode" for r in rows))
    second = Streaming(narrow, CHAT, "second")
    narrow.wait_requests(lambda rows: len(rows) == 2)
    narrow.post("/v1/requests/first/cancel")
    second.join(5)
    first.join(5)
    comments: list[str] = []
    parse(second.answer.content, comments)
    assert 'queued {"position": 1}' in comments


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("logprobs", {"logprobs": True}),
        ("seed", {"seed": 1}),
        ("presence_penalty", {"presence_penalty": 1.0}),
        (
            "messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
                        ],
                    }
                ]
            },
        ),
    ],
)
def test_what_a_backend_cannot_do_is_a_400_that_names_the_field(
    plain: Serving, field: str, more: dict[str, Any]
):
    for stream in (False, True):
        answer = plain.post(CHAT.path, {**CHAT.ask("hi", stream), **more})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field
        assert answer.json()["error"]["code"] == "unsupported"


@pytest.fixture(scope="module")
def plain(home: Path) -> Any:
    with Serving(home, "-o", "plain=true", backend="plain") as serving:
        serving.post(CHAT.path, CHAT.body("wake up"))
        yield serving


# -------------------------------------------------------------------------------------- faults, health


def test_a_killed_worker_is_an_error_in_the_stream_and_the_next_request_works(narrow: Serving):
    for number, api in enumerate((CHAT, OLLAMA_CHAT), start=1):
        raw = narrow.post(api.path, api.ask('[["text", "half "], ["die"]]', stream=True)).content
        assert b"SIGKILL" in raw
        health = narrow.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "degraded"
        assert "SIGKILL" in health.json()["models"][0]["error"]["message"]
        whole = narrow.post(api.path, api.ask("well again", stream=False))
        assert api.text_of(whole.json()) == "well again"
        assert narrow.get("/health").json()["status"] == "ok"
        assert narrow.get("/health").json()["models"][0]["restarts"] == number
    assert 'exo_worker_restarts{model="scripted"} 2.0' in narrow.get("/metrics").text
    assert not any("Traceback" in line for line in narrow.log)


def metrics(serving: Serving) -> dict[str, float]:
    """{name with its labels: value}"""
    lines = [line for line in serving.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_count_what_happened(narrow: Serving):
    before = metrics(narrow)
    narrow.post(CHAT.path, CHAT.body("a b c"))
    running = Streaming(narrow, CHAT, FOREVER, name="x")
    narrow.wait_requests(lambda rows: any(r["tokens"] > 2 for r in rows))
    assert metrics(narrow)['exo_requests_in_flight{model="scripted",phase="decode"}'] == 1
    narrow.post("/v1/requests/x/cancel")
    running.join(5)
    after = metrics(narrow)
    for name, more in {
        'exo_requests_total{api="openai.chat",model="scripted",outcome="stop"}': 1,
        'exo_requests_total{api="openai.chat",model="scripted",outcome="cancelled"}': 1,
        'exo_tokens_total{kind="prompt",model="scripted"}': 7,
        'exo_cancel_latency_seconds_count{model="scripted",phase="decode"}': 1,
        'exo_time_to_first_token_seconds_count{model="scripted"}': 2,
    }.items():
        assert after[name] - before.get(name, 0) == more, name
    assert after['exo_requests_in_flight{model="scripted",phase="decode"}'] == 0
    assert after['exo_model_loaded{model="scripted"}'] == 1
    gaps = 'exo_inter_token_seconds_count{model="scripted"}'
    assert after[gaps] - before.get(gaps, 0) >= 1


# ----------------------------------------------------------------------------------------- the end


def workers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text().split()] if children.exists() else []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_what_runs_finish(home: Path, number: int):
    with Serving(home) as serving:
        serving.post(CHAT.path, CHAT.body("wake up"))
        workers = workers_of(serving.process.pid)
        text = "slow " * 5 + "word " * 100
        running = Streaming(serving, CHAT, text)
        serving.wait_requests(lambda rows: bool(rows))
        with serving.client() as client:
            assert client.get("/ready").status_code == 200
            serving.signal(number)
            serving.wait_log("stopping")
            late = client.get("/ready")  # on a connection from before
            assert late.status_code == 503
            refused = client.post(CHAT.path, json=CHAT.body("too late"))
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
        with pytest.raises(OSError):
            socket.create_connection((serving.host, serving.port), timeout=5).close()
        running.join(10)
        assert CHAT.read_stream(running.answer.content)[:3] == (text, "stop", True)
        assert serving.wait() == 0
        assert all(wait_gone(pid) for pid in workers)


def test_after_the_drain_timeout_the_rest_is_cancelled_with_a_proper_end(home: Path):
    with Serving(home, "--drain-timeout", "0.2") as serving:
        running = [Streaming(serving, api, FOREVER) for api in (CHAT, OLLAMA_CHAT)]
        serving.wait_requests(lambda rows: len(rows) == 2 and all(r["phase"] == "decode" for r in rows))
        tab = socket.create_connection((serving.host, serving.port))  # a browser's idle connection
        serving.signal(signal.SIGTERM)
        assert serving.wait(8) == 0
        tab.close()
        for one, api in zip(running, (CHAT, OLLAMA_CHAT), strict=True):
            one.join(5)
            assert api.read_stream(one.answer.content)[1:3] == (api.truncated, True)


def test_the_second_signal_cancels_at_once(home: Path):
    with Serving(home, "--drain-timeout", "60") as serving:
        running = Streaming(serving, CHAT, FOREVER)
        serving.wait_requests(lambda rows: any(r["phase"] == "decode" for r in rows))
        serving.signal(signal.SIGINT)
        serving.wait_log("stopping")
        serving.signal(signal.SIGINT)
        begin = time.monotonic()
        assert serving.wait(8) == 0
        assert time.monotonic() - begin < 5
        running.join(5)
        assert CHAT.read_stream(running.answer.content)[1:3] == ("length", True)
        assert not any("Traceback" in line for line in serving.log)


def test_a_worker_that_hangs_does_not_keep_the_server(home: Path):
    with Serving(home, "--drain-timeout", "0") as serving:
        serving.post(CHAT.path, CHAT.body("wake up"))
        workers = workers_of(serving.process.pid)
        Streaming(serving, CHAT, "hang here")
        serving.wait_requests(lambda rows: any(r["phase"] == "prefill" for r in rows))
        serving.signal(signal.SIGTERM)
        serving.wait_log("cancelling")
        serving.signal(signal.SIGTERM)
        begin = time.monotonic()
        assert serving.wait(12) == 0
        assert time.monotonic() - begin < 3
        assert all(wait_gone(pid) for pid in workers)
        assert os.getpid() not in workers
