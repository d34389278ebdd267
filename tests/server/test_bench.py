"""The measuring itself, on the scripted engine: every figure is there, and a peer is measured alike."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from exocli import ExoError, Unavailable
from exocli.benchmark_requests import resident_mb
from exocli.runtime.session import Session
from exocli.server import bench

from tests.server.serving import environment
from tests.support.scripted import exo_backends

PLAN = bench.Plan(
    rounds=2, clients=(1, 2), words=20, reply_tokens=10, long_words=1500, cuts=1, settle=2, requests=6
)


async def test_the_report(home: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in environment(home).items():
        monkeypatch.setenv(name, value)
    session = Session(spec=exo_backends()[0], model="scripted", path="scripted")
    program = "import sys; print('given: nothing', flush=True); import runpy; sys.argv[0] = 'exo'"
    program += "; runpy.run_module('exocli', run_name='__main__')"
    peer = [sys.executable, "-c", program, "serve", "--port", "{port}", "-b", "scripted"]
    notes: list[str] = []
    report = await bench.measure(
        session, ["-b", "scripted"], PLAN, notes.append, bench.Peer(command=peer, model="scripted")
    )
    for clients in ("clients_1", "clients_2"):
        figures = report["throughput"][clients]
        assert figures["bare_tps"] > 0
        assert figures["http_tps"] > 0
        assert figures["ratio"] > 0.2
        assert abs(figures["added_ttft_ms"]) < 5000
        assert 0 < figures["http_ttft_ms"] < 1000, "what HTTP takes of it, whatever the engine does"
        assert report["peer"]["throughput"][clients]["peer_tps"] > 0
    # Its 1,500 words take three seconds to prefill: who is served sooner did not wait for them.
    for who in (report, report["peer"]):
        assert 0 < who["idle_to_token_s"] < 1.9 and 0 < who["disconnect_to_next_token_s"] < 1.9
    assert report["peer"]["given"] == "nothing"
    assert report["memory"]["requests"] == 6 and report["memory"]["before_mb"] > 10
    assert len(notes) >= 7
    assert not session.loaded


def test_a_server_that_does_not_come_up_is_named():
    with (
        pytest.raises(ExoError, match="does not come up as a server: no model"),
        bench.server([sys.executable, "-c", "print('no model')"]),
    ):
        raise AssertionError("it cannot have come up")
    with pytest.raises(ExoError, match="cannot be started"), bench.server(["/no/such/server"]):
        raise AssertionError("there is nothing to start")


def test_memory_counts_a_process_and_its_children():
    assert resident_mb([os.getpid()], children=True) >= resident_mb([os.getpid()]) > 20


def test_without_ps_memory_is_not_guessed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Unavailable, match="install it"):
        resident_mb([os.getpid()])
