"""`exo run` as a process of its own, with the real model: events, signals, pipes."""

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

from tests.support.runtime import wait_gone

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


def test_no_stream_json_is_one_object(spawn: Spawn) -> None:
    process = spawn(*EXO, "run", "--json", "--no-stream", "What is the capital of France?")
    out, _ = process.communicate()
    (whole,) = events(out)
    assert whole["type"] == "finished"
    assert "Paris" in whole["text"]


def test_plain_text_alone_on_stdout(spawn: Spawn) -> None:
    process = spawn(*EXO, "run", "What is the capital of France?", stdin=subprocess.PIPE)
    out, err = process.communicate("Answer in one sentence.\n")
    assert "Paris" in out
    assert out.endswith("\n")
    assert "\x1b" not in out + err
    assert err == ""


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def test_sigint_in_prefill(spawn: Spawn, document: str) -> None:
    process = spawn(*EXO, "run", "--json", "-f", document, "What is this?")
    assert process.stdout is not None
    progress = 0
    while progress < 3:
        progress += json.loads(process.stdout.readline())["type"] == "progress"
    workers = children(process.pid)
    os.kill(process.pid, signal.SIGINT)
    seen = events(process.stdout.read())
    process.wait()
    assert process.returncode == -signal.SIGINT
    last = seen[-1]
    assert last["reason"] == "cancelled"
    receipt = last["cancel"]
    assert receipt["phase"] == "prefill"
    assert 0 < receipt["processed"] < receipt["total"]
    assert receipt["total"] > 3000
    assert receipt["kept_tokens"] == 0
    assert (receipt["ranks"], receipt["confirmed"], receipt["killed"]) == (1, True, False)
    assert workers
    assert all(wait_gone(pid) for pid in workers)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


def test_a_shell_loop_around_it_stops(spawn: Spawn, document: str) -> None:
    run = f"{sys.executable} -m exocli run --json -f {document} What?"
    loop = f"for i in 1 2 3; do {run}; done; echo after"
    process = spawn("bash", "-c", loop)
    assert process.stdout is not None
    progress = 0
    while progress < 2:
        progress += json.loads(process.stdout.readline())["type"] == "progress"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the shell and to its child
    rest = process.stdout.read()
    process.wait()
    assert process.returncode == -signal.SIGINT
    assert "after" not in rest
    assert rest.count('"started"') == 0


def test_sigterm_ends_as_sigterm(spawn: Spawn, document: str) -> None:
    process = spawn(*EXO, "run", "--json", "-f", document)
    assert process.stdout is not None
    while json.loads(process.stdout.readline())["type"] != "progress":
        pass
    process.terminate()
    last = events(process.stdout.read())[-1]
    process.wait()
    assert process.returncode == -signal.SIGTERM
    assert last["reason"] == "cancelled"


def test_sigint_while_loading(spawn: Spawn) -> None:
    process = spawn(*EXO, "run", "--json", "Hello")
    assert process.stdout is not None
    while "done" not in json.loads(process.stdout.readline()):
        pass  # the worker is there and has begun to load
    workers = children(process.pid)
    assert workers
    os.kill(process.pid, signal.SIGINT)
    last = events(process.stdout.read())[-1]
    process.wait()
    assert process.returncode == -signal.SIGINT
    assert (last["reason"], last["cancel"]["phase"]) == ("cancelled", "loading")
    assert all(wait_gone(pid) for pid in workers)


def test_a_reader_that_leaves_ends_it(spawn: Spawn) -> None:
    process = spawn("bash", "-c", f"{sys.executable} -m exocli run 'Tell a long story.' | head -c 5")
    out, err = process.communicate()
    assert len(out) == 5
    assert "Traceback" not in err


def test_the_partial_text_was_printed(spawn: Spawn) -> None:
    process = spawn(*EXO, "run", "Tell a long story about a dog.", "--max-tokens", "400")
    assert process.stdout is not None
    first = process.stdout.read(12)
    os.kill(process.pid, signal.SIGINT)
    rest = process.stdout.read()
    process.wait()
    assert process.returncode == -signal.SIGINT
    assert len(first) == 12
    assert rest.endswith("\n")


def test_a_killed_worker_is_one_line_and_exit_1(spawn: Spawn) -> None:
    process = spawn(*EXO, "run", "--json", "Tell a long story about a dog.")
    assert process.stdout is not None
    while json.loads(process.stdout.readline())["type"] != "text":
        pass
    (worker,) = children(process.pid)
    os.kill(worker, signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 1
    assert events(out)[-1]["error"]["code"] == "worker_died"
    assert len(err.splitlines()) == 1
    assert "SIGKILL" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-m", "nothing-here", "hi"], 3, "nothing-here"),
        (["-b", "nothing", "hi"], 3, 'no backend "nothing"'),
        (["-o", "nothing=1", "hi"], 2, "nothing"),
        (["-o", "cpu_dtype=seven", "hi"], 2, "cpu_dtype"),
        (["-f", "/nowhere/at/all", "hi"], 2, "/nowhere/at/all"),
        (["--temperature", "-1", "hi"], 2, "--temperature"),
        (["--max-tokens", "0", "hi"], 2, "--max-tokens"),
        ([], 2, "no prompt"),
        (["word " * 9000], 1, "8192"),
    ],
)
def test_bad_input_is_one_sentence(spawn: Spawn, arguments: list[str], code: int, words: str) -> None:
    process = spawn(*EXO, "run", *arguments, stdin=subprocess.DEVNULL)
    out, err = process.communicate()
    assert process.returncode == code, err
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert out == ""
