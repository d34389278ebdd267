"""run/serve.json: there while a server lives, and only then."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
from pathlib import Path

import pytest
from exocli import served


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXO_HOME", str(tmp_path))
    return tmp_path


def file(home: Path) -> Path:
    return home / "run" / "serve.json"


def test_while_it_lives(home: Path):
    assert served.find() is None
    with served.advertised("http://127.0.0.1:7", ["a", "b"]):
        found = served.find()
        assert found is not None
        assert (found.url, found.pid, found.models) == ("http://127.0.0.1:7", os.getpid(), ("a", "b"))
        assert stat.S_IMODE(file(home).stat().st_mode) == 0o600
        assert set(json.loads(file(home).read_text())) == {"url", "pid", "models", "started"}
    assert served.find() is None and list(file(home).parent.iterdir()) == []


def test_of_several_the_last_one_is_told_of_in_whatever_order_they_end(home: Path):
    def told() -> str | None:
        found = served.find()
        return found.url if found is not None else None

    one, two, three = (served.advertised(f"http://127.0.0.1:{port}", []) for port in (1, 2, 3))
    for server in (one, two):
        server.__enter__()
    assert told() == "http://127.0.0.1:2"
    two.__exit__(None, None, None)
    assert told() == "http://127.0.0.1:1"  # it runs still
    three.__enter__()
    one.__exit__(None, None, None)
    assert told() == "http://127.0.0.1:3"
    three.__exit__(None, None, None)
    assert told() is None and list(file(home).parent.iterdir()) == []


def test_a_place_that_cannot_be_taken_stops_no_server(home: Path):
    file(home).mkdir(parents=True)
    with served.advertised("http://127.0.0.1:7", []):
        assert served.find() is None
    assert list(file(home).parent.iterdir()) == [file(home)]


@pytest.mark.parametrize(
    ("url", "reached"),
    [("http://0.0.0.0:7", "http://127.0.0.1:7"), ("http://[::]:7", "http://[::1]:7")],
)
def test_one_that_listens_everywhere_is_reached_here(url: str, reached: str):
    with served.advertised(url, []):
        found = served.find()
        assert found is not None and found.url == reached


def _serve(ready: object) -> None:
    with served.advertised("http://127.0.0.1:7", ["a"]):
        ready.set()  # type: ignore[attr-defined]
        signal.pause()


def test_one_that_was_killed_left_a_stale_file(home: Path):
    """Its process id may be anybody's by now: the lock is what tells."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    process = spawn.Process(target=_serve, args=(ready,))
    process.start()
    assert ready.wait(20)
    assert served.find() is not None
    process.kill()
    process.join(10)
    assert file(home).exists() and served.find() is None
    process.close()
    with served.advertised("http://127.0.0.1:8", []):
        assert served.find() is not None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "x", "pid": "y", "models": [], "started": 0}'])
def test_a_file_that_makes_no_sense(text: str, home: Path):
    import fcntl

    file(home).parent.mkdir()
    file(home).write_text(text)
    with file(home).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert served.find() is None


def test_a_folder_that_cannot_be_written(home: Path):
    (home / "run").write_text("a file is in the way")
    with served.advertised("http://127.0.0.1:7", []):
        assert served.find() is None
