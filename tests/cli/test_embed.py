"""`exo embed` as a process of its own, with the real model; and what the other commands say to that model."""

from __future__ import annotations

import io
import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import pytest
from exocli.cli import prompt_input

from tests.cli.conftest import Result

Start = Callable[..., "Popen[str]"]


@pytest.fixture
def model(minilm: Path) -> str:
    """By its path: the home of these tests is empty."""
    return str(minilm)


def ended(process: Popen[str]) -> tuple[int, list[Any], str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def test_texts_as_arguments_and_lines_of_files(spawn: Start, model: str, tmp_path: Path) -> None:
    texts = ["one, which is longer than the next", "", "食事"]
    (tmp_path / "texts").write_text("\r\n".join(texts) + "\r\n", encoding="utf-8")
    code, rows, err = ended(spawn("embed", "-m", model, *texts, stdin=DEVNULL))
    assert (code, err) == (0, "") and [len(row) for row in rows] == [384, 384, 384]
    command = ("embed", "-m", model, "--json", "-f", str(tmp_path / "texts"))
    code, events, _ = ended(spawn(*command, stdin=DEVNULL))
    assert (events[0]["type"], events[-1]["type"], events[-1]["reason"]) == ("started", "finished", "stop")
    vectors = {event["index"]: event["vector"] for event in events if event["type"] == "embedding"}
    assert [vectors[index] == pytest.approx(rows[index], abs=1e-5) for index in range(3)] == [True] * 3


def test_lines_of_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "piped").write_bytes("\ufeffone\n\nthree\n".encode())
    with (tmp_path / "piped").open("rb") as file:
        keep = os.dup(0)
        os.dup2(file.fileno(), 0)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        try:
            found = prompt_input.lines((), read_stdin=True, note=print)
        finally:
            os.dup2(keep, 0)
            os.close(keep)
    assert found == ("one", "", "three") and prompt_input.lines((), read_stdin=False, note=print) == ()


def test_ctrl_c(spawn: Start, model: str, tmp_path: Path) -> None:
    (tmp_path / "many").write_text("\n".join(f"sentence number {n} of many" for n in range(5000)))
    process = spawn("embed", "-m", model, "--json", "-f", str(tmp_path / "many"), stdin=DEVNULL)
    assert process.stdout is not None
    while '"embedding"' not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rows = [json.loads(line) for line in process.stdout]  # not communicate(), which passes by what is read
    code = process.wait()
    assert code == -signal.SIGINT and rows[-1]["reason"] == "cancelled"
    assert 0 < rows[-1]["cancel"]["processed"] < rows[-1]["cancel"]["total"]


def test_a_reader_that_takes_nothing_does_not_hold_it_up(spawn: Start, model: str, tmp_path: Path) -> None:
    (tmp_path / "many").write_text("\n".join(str(n) for n in range(40)))
    reading, writing = os.pipe()
    process = spawn("embed", "-m", model, "-f", str(tmp_path / "many"), stdin=DEVNULL, stdout=writing)
    while select.select([], [writing], [], 0)[1]:  # until the pipe is full
        assert process.poll() is None
        select.select([], [], [], 0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == -signal.SIGTERM
    os.close(reading)
    os.close(writing)


def test_refusals_are_one_sentence(exo: Callable[..., Result], model: str) -> None:
    for command, words in (
        (("embed", "-m", model, "--dimensions", "5", "x"), "makes vectors of 384 dimensions, not 5"),
        (("run", "-m", model, "--no-stdin", "hi"), "cannot chat, only make embeddings"),
    ):
        result = exo(*command)
        assert result.code == 1 and words in result.err and result.err.count("\n") == 1
    assert "There is no text" in exo("embed").err and exo("embed").code == 2
    missing = exo("embed", "x")
    assert missing.code == 3 and "exo models pull minilm" in missing.err
    refused = exo("run", "-b", "ring", "-m", model, "--no-stdin", "hi")
    assert refused.code == 3 and "ring does not open" in refused.err


def test_models_say_what_they_are_for(
    exo: Callable[..., Result], minilm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXO_HOME", str(minilm_home))
    shown = exo("models", "show", "minilm").out
    assert "for: embeddings\n" in shown and "dimensions: 384\n" in shown and "context: 256\n" in shown
    rows = {row["name"]: row for row in json.loads(exo("models", "list", "--json").out)}
    assert rows["minilm"]["tasks"] == ["embed"] and rows["minilm"]["backend"] == "mlx"
    assert "embeddings" in exo("models", "list").out
