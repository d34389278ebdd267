"""The measuring itself, on the scripted engine: every figure is there, and a peer is measured alike."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from exocli import ExoError
from exocli.runtime.session import Session
from exocli.server import bench

from tests.server.serving import environment
from tests.support.scripted import exo_backends

PLAN = bench.Plan(rounds=1, clients=(1, 2), words=20, reply_tokens=10, long_words=1500, cuts=1, requests=6)


async def test_the_report(home: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in environment(home).items():
        monkeypatch.setenv(name, value)
    session = Session(spec=exo_backends()[0], model="scripted", path="scripted")
    peer = [sys.executable, "-m", "exocli", "serve", "--port", "{port}", "-b", "scripted"]
    notes: list[str] = []
    report = await bench.measure(session, ["-b", "scripted"], PLAN, notes.append, peer, "scripted")
    for clients in ("clients_1", "clients_2"):
        figures = report["throughput"][clients]
        assert figures["bare_tps"] > 0
        assert figures["http_tps"] > 0
        assert figures["ratio"] > 0.2
        assert abs(figures["added_ttft_ms"]) < 5000
        assert report["peer"]["throughput"][clients]["peer_tps"] > 0
    # Its 1,500 words take three seconds to prefill: who is served sooner did not wait for them.
    assert report["disconnect_to_next_token_s"] < 1.9
    assert report["peer"]["disconnect_to_next_token_s"] > 0
    assert report["memory"]["before_mb"] > 10
    assert len(notes) >= 7
    assert not session.loaded


def test_a_server_that_does_not_come_up_is_named():
    with pytest.raises(ExoError, match="does not come up"), bench.server([sys.executable, "-c", "pass"]):
        raise AssertionError("it cannot have come up")


def test_memory_counts_a_process_and_its_children():
    assert bench.resident(os.getpid()) > 20
