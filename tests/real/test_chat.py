"""`exo chat` at a terminal with the real model: the issue's Shows 1, 3 and 4."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chat import terminal as terminals
from tests.chat.terminal import CTRL_C, CTRL_D, ENTER, Terminal
from tests.support.runtime import wait_gone

PASTE, PASTED = "\x1b[200~", "\x1b[201~"


@pytest.fixture
def home(smollm2_home: Path, tmp_path: Path) -> Path:
    """A fresh home that shares the model."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(smollm2_home / "models")
    return home


@pytest.fixture
def terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setattr(terminals, "WAIT_S", 120.0)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EXO_") and k != "NO_COLOR"}
    opened = Terminal(
        [sys.executable, "-m", "exocli", "chat", "--max-tokens", "24"],
        {**kept, "TERM": "xterm-256color", "EXO_HOME": str(home)},
    )
    yield opened
    opened.close()


def turns(home: Path) -> list[dict[str, Any]]:
    (path,) = (home / "conversations").glob("*.json")
    found: list[dict[str, Any]] = json.loads(path.read_text())["turns"]
    return found


def test_paris_then_cancels_in_decode_and_in_prefill(terminal: Terminal, home: Path) -> None:
    terminal.prompt()
    assert terminal.lines[0].startswith("smollm2 on mlx · ")
    terminal.ask("What is the capital of France?", "Paris")
    terminal.send("Tell me a long story about a fox." + ENTER)
    terminal.until(r"a long story about a fox\.\n(?!waiting|reading)\w+ \w+")
    terminal.send(CTRL_C)
    terminal.until(r"^\[stopped\]$")
    terminal.prompt()
    terminal.ask("What is the capital of Italy?", "Rome")
    assert [turn.get("mark", "") for turn in turns(home)] == ["", "", "", "stopped", "", ""]

    items = [f"Item {i} of the list has the value {i * 37 % 101}." for i in range(14)]
    document = "\r\n".join([*items, "", "What is the capital of Spain?"])
    terminal.send(PASTE + document + PASTED)
    terminal.until(r"^\. What is the capital of Spain\?$")
    terminal.send(ENTER)
    terminal.until(r"reading █.* tokens · .* left")
    terminal.send(CTRL_C)
    shown = terminal.until(r"\[stopped after reading [\d,]+ of [\d,]+ tokens; [\d,]+ are kept")
    kept = int(shown.split(";")[1].split()[0].replace(",", ""))
    assert kept > 0
    terminal.until("^> Enter sends again, Tab edits: Item 0 of the list")
    terminal.send(ENTER)
    terminal.until(rf"^\[goes on at {kept:,} of")
    terminal.until(r"of [\d,]+ tokens\]\n\w+")
    terminal.prompt()
    workers = terminal.workers()
    terminal.send(CTRL_D)
    assert terminal.ended() == 0
    assert len(workers) == 1 and wait_gone(workers[0])
    question, answer = turns(home)[-2:]
    assert question["text"] == document.replace("\r\n", "\n")
    assert answer["report"]["usage"]["cached_tokens"] >= kept
