"""`exo run` as a process of its own, with the real model: the issue's Shows 2 and 3. What no model is needed
for is in tests/cli/test_run.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.runtime import children_of, wait_gone

EXO = [sys.executable, "-m", "exocli"]
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def spawn(smollm2_home: Path, tmp_path: Path) -> Iterator[Spawn]:
    """Start a command with the model's home; what is left at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, **more: Any) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("EXO_")}
        process = subprocess.Popen(
            command,
            env={**env, "EXO_HOME": str(smollm2_home)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **more,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def document(tmp_path: Path) -> str:
    """A file of more than 3,000 tokens."""
    path = tmp_path / "document.txt"
    path.write_text(" ".join(f"Item {i} of the list has the value {i * 37 % 101}." for i in range(240)))
    return str(path)


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_the_events_of_the_contract(spawn: Spawn) -> None:
    process = spawn(*EXO, "run", "--json", "What is the capital of France?", stdin=subprocess.DEVNULL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    found = events(out)
    assert found[0]["type"] == "started"
    assert (found[0]["v"], found[0]["model"], found[0]["backend"]) == (1, "smollm2", "mlx")
    assert [e["type"] for e in found].count("finished") == 1
    last = found[-1]
    assert (last["type"], last["reason"]) == ("finished", "stop")
    assert "cancel" not in last
    assert "error" not in last
    assert set(last["usage"]) == {"prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"}
    assert set(last["timing"]) == {"ttft_s", "prefill_tps", "decode_tps", "total_s"}
    assert "Paris" in "".join(e["text"] for e in found if e["type"] == "text")
    assert len({e["id"] for e in found}) == 1


def test_ctrl_c_in_prefill_ends_it_and_a_shell_loop_around_it(spawn: Spawn, document: str) -> None:
    run = f"{sys.executable} -m exocli run --json -f {document} 'What is this?'"
    shell = spawn("bash", "-c", f"for i in 1 2 3; do {run}; done; echo after")
    assert shell.stdout is not None and shell.stderr is not None
    progress = 0
    while progress < 3:
        progress += json.loads(shell.stdout.readline())["type"] == "progress"
    (exo,) = children_of(shell.pid)
    workers = children_of(exo)
    os.killpg(shell.pid, signal.SIGINT)  # as a terminal does: to the shell and to its child
    rest = shell.stdout.read()
    assert shell.wait() == -signal.SIGINT
    assert "after" not in rest and '"started"' not in rest
    last = events(rest)[-1]
    receipt = last["cancel"]
    assert (last["reason"], receipt["phase"]) == ("cancelled", "prefill")
    assert 0 < receipt["processed"] < receipt["total"] and receipt["total"] > 3000
    assert receipt["kept_tokens"] == 0, "its worker ends with it"
    assert (receipt["ranks"], receipt["confirmed"], receipt["killed"]) == (1, True, False)
    assert len(workers) == 1 and all(map(wait_gone, (exo, *workers)))
    assert "Traceback" not in shell.stderr.read()
