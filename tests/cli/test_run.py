"""`exo run`: what goes in, what comes out, and how it ends, on an engine that needs no model.

tests/real/test_run.py does the same with the default model, where the model makes a difference.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chat.terminal import workers_of
from tests.cli.conftest import Result
from tests.support.runtime import wait_gone

Exo = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[str]"]
RUN = ("run", "-b", "talker", "--no-stdin")


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def until(process: subprocess.Popen[str], **fields: Any) -> dict[str, Any]:
    """Read lines of --json until an event has these fields."""
    assert process.stdout is not None
    while True:
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        event: dict[str, Any] = json.loads(line)
        if fields.items() <= event.items():
            return event


def ended(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, Any]], str]:
    assert process.stdout is not None and process.stderr is not None
    rest, errors = process.stdout.read(), process.stderr.read()  # not communicate(): it forgets what is read
    return process.wait(20), events(rest), errors


# ------------------------------------------------------------------------------------- in and out


@pytest.mark.usefixtures("talker")
def test_events_or_one_object_or_the_text_alone(exo: Exo) -> None:
    found = events(exo(*RUN, "--json", "one two").out)
    assert (found[0]["type"], found[0]["backend"], found[-1]["type"]) == ("started", "talker", "finished")
    assert len({event["id"] for event in found}) == 1
    (whole,) = events(exo(*RUN, "--json", "--no-stream", "ponder call").out)
    assert (whole["type"], whole["text"], whole["reasoning"]) == ("finished", "heard 1: ponder ", "hmm well ")
    assert whole["tool_calls"][0]["name"] == "weather"
    for stream in ((), ("--no-stream",)):
        result = exo(*RUN, *stream, "one two", "-v")
        assert (result.code, result.out) == (0, "heard 1: one two \n")
    assert "3 prompt tokens (0 cached), 5 reply tokens" in exo(*RUN, "a b c", "-v").err


@pytest.mark.usefixtures("talker")
def test_documents_come_before_the_question(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes("\ufeffbrought\r\n".encode())
    command = ("run", "-b", "talker", "-f", str(tmp_path / "b"), "asked")
    process = spawn(*command, stdin=subprocess.PIPE)
    assert process.stderr is not None and process.stdin is not None
    assert process.stderr.readline() == "Waiting for standard input (--no-stdin goes on without it).\n"
    process.stdin.write("piped\n")
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("heard 1: piped brought asked \n", "", 0)


@pytest.mark.usefixtures("talker")
def test_a_schema_reaches_the_engine(exo: Exo, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "string"}')
    said = json.loads(exo(*RUN, "--schema", str(tmp_path / "s.json"), "format").out)
    assert said == {"type": "json_schema", "schema": {"type": "string"}}


@pytest.mark.usefixtures("talker")
def test_what_a_worker_says_is_in_its_log_and_on_the_screen_with_debug_alone(exo: Exo, home: Path) -> None:
    assert exo(*RUN, "hi").err == ""
    assert exo(*RUN, "--debug", "hi").err == "[rank 0] opening\n"
    assert (home / "logs" / "talker-rank0.log").read_text() == "opening\n" * 2


@pytest.mark.usefixtures("talker")
def test_a_base_model_goes_on_with_the_text(exo: Exo) -> None:
    result = exo(*RUN, "-o", "load=base", "--json", "-s", "once", "upon a time")
    found = events(result.out)
    assert (result.code, [event["type"] for event in found].count("started")) == (0, 1)
    assert "".join(e["text"] for e in found if e["type"] == "text") == "heard 0: once upon a time "
    assert len({event["id"] for event in found}) == 1
    assert "is a base model: it goes on with the text as it stands" in result.err


# ---------------------------------------------------------------------------------------- signals


@pytest.mark.usefixtures("talker")
@pytest.mark.parametrize(
    ("prompt", "more", "seen", "phase"),
    [
        ("Hello", ("-o", "load=hang"), {"type": "status", "done": 1}, "loading"),
        ("slowly " * 50, (), {"type": "progress"}, "prefill"),
        ("forever", (), {"type": "text"}, "decode"),
    ],
    ids=["loading", "prefill", "decode"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_cancels_says_so_and_ends_by_the_signal(
    spawn: Spawn, number: int, prompt: str, more: tuple[str, ...], seen: dict[str, Any], phase: str
) -> None:
    process = spawn(*RUN, "--json", *more, prompt)
    until(process, **seen)
    workers = workers_of(process.pid)
    process.send_signal(number)
    code, rest, errors = ended(process)
    assert (code, errors) == (-number, "")
    assert (rest[-1]["reason"], rest[-1]["cancel"]["phase"]) == ("cancelled", phase)
    assert rest[-1]["cancel"]["kept_tokens"] == 0, "its worker ends with it"
    assert len(workers) == 1 and wait_gone(workers[0])


@pytest.mark.usefixtures("talker")
def test_a_second_ctrl_c_kills_a_worker_that_does_not_hear(spawn: Spawn) -> None:
    process = spawn(*RUN, "--json", "slowly deaf forever")
    until(process, type="text")
    workers = workers_of(process.pid)
    while not wait_gone(process.pid, 0.1):  # again and again: two that come in one moment are one
        process.send_signal(signal.SIGINT)
    code, rest, _ = ended(process)
    assert code == -signal.SIGINT
    assert rest[-1]["reason"] == "cancelled" and rest[-1]["cancel"]["killed"] is True
    assert all(wait_gone(pid) for pid in workers)


@pytest.mark.usefixtures("talker")
def test_what_was_said_before_a_ctrl_c_is_printed(spawn: Spawn) -> None:
    process = spawn(*RUN, "forever")
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.read(12)
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert (process.wait(20), process.stderr.read()) == (-signal.SIGINT, "")
    assert (first + rest).startswith("heard 1: forever") and rest.endswith("\n")


@pytest.mark.usefixtures("talker")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_reader_that_takes_nothing_does_not_hold_it_up(spawn: Spawn, number: int) -> None:
    """A pager that shows its first page, say."""
    reading, writing = os.pipe()
    process = spawn(*RUN, "forever " + "w" * 3000, stdout=writing)
    while select.select([], [writing], [], 0)[1]:  # until the pipe is full
        assert process.poll() is None
        select.select([], [], [], 0.01)
    workers = workers_of(process.pid)
    process.send_signal(number)
    assert process.wait(20) == -number
    assert len(workers) == 1 and wait_gone(workers[0])
    os.close(reading)
    os.close(writing)


@pytest.mark.usefixtures("talker")
def test_a_reader_that_leaves_ends_it(spawn: Spawn) -> None:
    line = f"'{sys.executable}' -m exocli {' '.join(RUN)} forever | head -c 5"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=20, check=False)
    assert (done.stdout, done.stderr) == ("heard", "")


@pytest.mark.usefixtures("talker")
def test_a_worker_that_dies_is_one_line_and_exit_1(exo: Exo) -> None:
    result = exo(*RUN, "--json", "die")
    assert result.code == 1 and events(result.out)[-1]["error"]["code"] == "worker_died"
    assert len(result.err.splitlines()) == 1 and "SIGKILL" in result.err


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.usefixtures("talker")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-m", "nothing-here", "hi"], 3, "nothing-here"),
        (["-m", "./nothing-here", "hi"], 3, "no file or folder ./nothing-here"),
        (["-m", "some/thing", "hi"], 3, 'run "exo models pull some/thing" first, or add --pull'),
        (["-b", "nothing", "hi"], 3, 'no backend "nothing"'),
        (["-b", "talker", "-o", "nothing=1", "hi"], 2, "nothing"),
        (["-b", "talker", "-o", "load=seven", "hi"], 2, "fast|hang|fail|base"),
        (["-b", "talker", "-o", "load=fail", "hi"], 3, "weights are cut off"),
        (["-b", "mlx", "-o", "cpu_dtype=seven", "hi"], 2, "cpu_dtype"),
        (["-f", "/nowhere/at/all", "hi"], 2, "/nowhere/at/all"),
        (["--temperature", "-1", "hi"], 2, "--temperature"),
        (["--max-tokens", "0", "hi"], 2, "--max-tokens"),
        ([], 2, "no prompt"),
        (["-b", "talker", "toolong"], 1, "1,500 tokens, the model's context holds 1,000"),
    ],
)
def test_bad_input_is_one_sentence(exo: Exo, arguments: list[str], code: int, words: str) -> None:
    result = exo("run", "--no-stdin", *arguments)
    assert (result.code, result.out) == (code, ""), result.err
    assert len(result.err.strip().splitlines()) == 1 and words in result.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe{", "is not UTF-8"),
        (b"[1, 2]", "holds no JSON schema"),
        (b'"string"', "holds no JSON schema"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_schema_is_one_sentence_and_2(
    exo: Exo, tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes(content)
    result = exo("run", "--schema", str(path), "--no-stdin", "hi")
    assert (result.code, result.out) == (2, "")
    assert words in result.err and str(path) in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["absent.json", "."])
def test_a_file_that_cannot_be_read_is_one_sentence_and_2(exo: Exo, tmp_path: Path, name: str) -> None:
    result = exo("run", "--schema", str(tmp_path / name), "--no-stdin", "hi")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "cannot be read" in result.err
