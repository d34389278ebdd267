"""The lines, and a worker spoken to by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from exocli.backend import WorkerSpec
from exocli.errors import EngineFailed, Unavailable
from exocli.runtime import wire
from exocli.runtime.group import RankGroup
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engines import spec
from tests.support.runtime import wait_gone

json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_data, max_size=4))
def test_a_line_survives_the_pipe(line: dict[str, Any]) -> None:
    raw = wire.encode(line)
    assert raw.count(b"\n") == 1 and raw.endswith(b"\n")
    assert wire.decode(raw) == line


def test_half_a_surrogate_pair_survives_too() -> None:
    assert wire.decode(wire.encode({"text": "\ud83d"})) == {"text": "\ud83d"}


@pytest.mark.parametrize("raw", [b"\n", b"[1]\n", b"no\n", b"\xff\xfe\n"])
def test_what_is_no_object_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        wire.decode(raw)


@contextmanager
def worker(order: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "exocli.runtime.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        assert process.stdin is not None
        process.stdin.write(wire.encode(order))
        process.stdin.flush()
        yield process
        process.stdin.close()
        process.wait(10)


def read(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    return wire.decode(process.stdout.readline())


def opened() -> dict[str, Any]:
    one = spec()
    order = {"backend": one.name, "open": one.open, "open_options": one.open_options}
    return {"wire": wire.VERSION, "open": {**order, "model": "m", "cache_dir": "/nonexistent"}}


def test_a_worker_says_hello_and_is_ready() -> None:
    with worker(opened()) as process:
        hello = read(process)
        assert (hello["t"], hello["wire"], hello["pid"]) == ("hello", wire.VERSION, process.pid)
        kinds = [read(process) for _ in range(4)]
        ready = next(line for line in kinds if line["t"] == "ready")
        assert ready["capabilities"]["max_concurrency"] == 4 and ready["max_lead"] is None


def test_another_wire_version_is_refused_in_words() -> None:
    with worker({**opened(), "wire": 99}) as process:
        assert read(process)["t"] == "hello"
        failed = read(process)
        assert failed["t"] == "failed"
        assert f"wire version {wire.VERSION}, its parent 99" in failed["error"]["message"]
        assert process.wait(10) == 1


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b"{}\n", b'{"do":"submit"}\n'])
def test_a_worker_that_is_told_nonsense_ends(line: bytes) -> None:
    with worker(opened()) as process:
        while read(process)["t"] != "ready":
            pass
        assert process.stdin is not None
        process.stdin.write(line)
        process.stdin.flush()
        process.wait(10)


def test_a_worker_that_nobody_listens_to_ends_with_what_it_started() -> None:
    order = opened()
    order["open"]["options"] = {"child": True}
    with worker(order) as process:
        while (line := read(process))["t"] != "ready":
            pass
        assert process.stdin is not None and process.stdout is not None
        process.stdout.close()
        request = {"id": "a", "prompt": "x"}
        process.stdin.write(wire.encode({"do": "prepare", "ticket": 1, "request": request}))
        process.stdin.flush()
        process.wait(10)
        assert wait_gone(line["describe"]["child"])


async def group_of(line: dict[str, Any], tmp_path: Any) -> RankGroup:
    """A group whose rank is a program that says one line and waits."""
    program = f"import sys; print({json.dumps(line)!r}, flush=True); sys.stdin.read()"
    specs = [WorkerSpec(prefix=(sys.executable, "-c", program))]
    return RankGroup(backend="odd", order={"backend": "odd"}, specs=specs, inline=False, log_dir=tmp_path)


async def test_a_worker_of_another_wire_version_is_refused_in_words(tmp_path: Any) -> None:
    group = await group_of({"t": "hello", "wire": 99, "pid": 1}, tmp_path)
    with pytest.raises(Unavailable, match=f"speaks wire version 99, exo here {wire.VERSION}"):
        await group.start(lambda *_: None)
    await group.close()


@pytest.mark.parametrize("line", [{"t": "ready"}, {"t": "hello"}, {"t": "step", "events": [3]}])
async def test_a_worker_that_talks_nonsense_is_an_error(tmp_path: Any, line: dict[str, Any]) -> None:
    group = await group_of(line, tmp_path)
    with pytest.raises(EngineFailed, match="makes no sense"):
        await group.start(lambda *_: None)
    await group.close()


@pytest.mark.parametrize("printed", ["hello", "[" * 100_000])
async def test_a_worker_that_prints_no_protocol_is_an_error(tmp_path: Any, printed: str) -> None:
    specs = [WorkerSpec(prefix=("echo", printed))]
    group = RankGroup(backend="odd", order={"backend": "odd"}, specs=specs, inline=False, log_dir=tmp_path)
    with pytest.raises(Exception, match="sent a line that is not of the protocol"):
        await group.start(lambda *_: None)
    await group.close()
