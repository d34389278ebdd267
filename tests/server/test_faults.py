"""Clients that break off hard, many short requests: the server stays, nothing leaks, the log stays short."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.apis import ALL, CHAT, OLLAMA_CHAT, SSE
from tests.server.serving import Serving
from tests.server.test_lifecycle import workers_of

RESETS = 50


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Serving]:
    with Serving(home, "--max-queue", "0") as serving:
        serving.post(CHAT.path, CHAT.body("wake up"))
        yield serving


def reset(connection: socket.socket) -> None:
    """Close with RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def test_tcp_resets_in_mid_stream(server: Serving):
    """50 of them, with a queue of none: a leaked slot would refuse the next request."""
    before = open_files(server.process.pid)
    for number in range(RESETS):
        api = ALL[number % len(ALL)]
        server.wait_requests(lambda rows: len(rows) < 4)
        connection = server.open(api.path, api.ask("forever", stream=True), {"X-Request-Id": f"rst-{number}"})
        assert connection.recv(1) == b"H"
        reset(connection)
    server.wait_idle()
    answers = [server.post(CHAT.path, CHAT.body("fine")) for _ in range(3)]
    assert [a.status_code for a in answers] == [200] * 3
    for number in range(RESETS):
        assert "outcome=cancelled" in server.wait_log(f"id=rst-{number} ")
    assert not any("Traceback" in line for line in server.log)
    assert open_files(server.process.pid) <= before + 1


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: nonsense\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_in_peace(server: Serving, raw: bytes):
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(raw)
        assert connection.recv(100).startswith(b"HTTP/1.1 4")
    assert server.get("/health").json()["status"] == "ok"
    assert not any("Traceback" in line for line in server.log)


def test_a_body_cut_short_leaves_nothing_behind(server: Serving):
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    server.wait_log("path=/api/chat status=499")
    assert server.requests() == []


def test_an_old_client_without_host_or_keepalive(server: Serving):
    body = json.dumps(CHAT.ask("a b", stream=True)).encode()
    head = f"POST {CHAT.path} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(head + body)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.endswith(b"data: [DONE]\n\n")


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.soak)])
def test_memory_stays_flat_over_short_requests_half_of_them_cancelled(home: Path, count: int):
    with Serving(home, "--max-queue", "100") as serving:
        (worker,) = workers_of(serving.process.pid) or [0]

        def one(number: int) -> None:
            api = SSE[number % len(SSE)] if number % 3 else OLLAMA_CHAT
            if number % 2:
                connection = serving.open(api.path, api.ask("forever and ever", stream=True))
                connection.recv(1)
                connection.close()
            else:
                answer = client.post(api.path, json=api.ask(f"n {number} words", stream=bool(number % 4)))
                assert answer.status_code == 200

        with serving.client() as client, ThreadPoolExecutor(4) as pool:
            list(pool.map(one, range(100)))  # what is made once is made
            serving.wait_idle()
            worker = worker or workers_of(serving.process.pid)[0]
            before = resident(serving.process.pid), resident(worker)
            list(pool.map(one, range(count)))
            serving.wait_idle()
        after = resident(serving.process.pid), resident(worker)
        assert after[0] < before[0] * 1.05, "the server grew"
        assert after[1] < before[1] * 1.05, "the worker grew"
        assert serving.get("/health").json()["models"][0]["restarts"] == 0
