"""A ring behind HTTP: clients that leave, cancels from two sides, cycles of both, a rank that is killed."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Serving, chat
from tests.support.runtime import children_of, wait_gone

PATH = "/v1/chat/completions"
LONG = "the quick brown fox jumps over the lazy dog. " * 40
SHORT = chat("hello", max_tokens=3)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's EXO_HOME."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(folder: Path, place: Path) -> Iterator[Serving]:
    flags = ("-m", str(folder), "-o", "ranks=2", "-o", "strategy=pipeline", "-o", "chunk=32")
    with Serving(place, *flags, backend="ring") as serving:
        assert serving.post(PATH, SHORT).status_code == 200
        yield serving
        pids = children_of(serving.process.pid)
    assert all(wait_gone(pid) for pid in pids)


def steps(place: Path, name: str) -> list[list[str]]:
    """For each rank the steps at which it says that the request left."""
    logs = [(place / "logs" / f"ring-rank{rank}.log").read_text() for rank in (0, 1)]
    return [re.findall(rf"left {name} at step (\d+)", log) for log in logs]


def start(server: Serving, name: str, body: dict[str, Any], processed: int) -> Any:
    """A streaming request that has come so far; its connection."""
    connection = server.open(PATH, {**body, "stream": True}, {"X-Request-Id": name})
    server.wait_requests(lambda rows: any(r["id"] == name and r["processed"] >= processed for r in rows), 60)
    return connection


@pytest.mark.parametrize("seed", [None, 7])
def test_a_client_that_leaves_in_prefill_leaves_every_rank_at_one_step(
    server: Serving, place: Path, seed: int | None
) -> None:
    name = f"leaves-{seed}"
    start(server, name, chat(f"{name} {LONG}", seed=seed), 64).close()
    line = server.wait_log(f"id={name}")
    assert "outcome=cancelled" in line and "phase=prefill" in line
    first, second = steps(place, name)
    assert len(first) == 1 and first == second
    assert server.post(PATH, SHORT).status_code == 200


def test_a_cancel_and_a_disconnect_at_once_are_one_cancel(server: Serving, place: Path) -> None:
    ranks = children_of(server.process.pid)
    connection = start(server, "twice", chat(LONG), 64)
    asking = threading.Thread(target=server.post, args=("/v1/requests/twice/cancel",))
    asking.start()
    connection.close()
    asking.join(20)
    assert "outcome=cancelled" in server.wait_log("id=twice")
    server.wait_idle()
    assert len([line for line in server.log if "id=twice" in line]) == 1
    first, second = steps(place, "twice")
    assert len(first) == 1 and first == second
    assert server.post(PATH, SHORT).status_code == 200
    assert children_of(server.process.pid) == ranks


@pytest.mark.parametrize("cycles", [4, pytest.param(50, marks=pytest.mark.soak)])
def test_starts_and_cancels_at_random_points(server: Serving, cycles: int) -> None:
    ranks, chance = children_of(server.process.pid), random.Random(5)
    for cycle in range(cycles):
        name = f"cycle-{cycles}-{cycle}"
        body = {**chat(f"{cycle} {LONG}"[: chance.randrange(20, 500)], max_tokens=500), "stream": True}
        connection = server.open(PATH, body, {"X-Request-Id": name})
        time.sleep(chance.random() * 0.4)
        if cycle % 2:
            server.post(f"/v1/requests/{name}/cancel")
        connection.close()
        server.wait_log(f"id={name} ")
        server.wait_idle()
    assert server.post(PATH, SHORT).status_code == 200
    assert children_of(server.process.pid) == ranks


def test_a_killed_rank_fails_the_request_promptly_and_by_name(server: Serving) -> None:
    answers: list[Any] = []
    body = chat(LONG, max_tokens=500)
    asking = threading.Thread(
        target=lambda: answers.append(server.post(PATH, body, headers={"X-Request-Id": "dies"}))
    )
    asking.start()
    server.wait_requests(lambda rows: any(r["id"] == "dies" and r["processed"] >= 64 for r in rows), 60)
    ranks = children_of(server.process.pid)
    at = time.monotonic()
    os.kill(max(ranks), signal.SIGKILL)
    asking.join(20)
    assert time.monotonic() - at < 3
    (answer,) = answers
    assert answer.status_code in (500, 503)
    assert re.search(r"Rank [01] on this machine of ring was killed", answer.json()["error"]["message"])
    assert all(wait_gone(pid) for pid in ranks)
