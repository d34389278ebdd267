"""Fixtures of the chat's tests: a home, the test backends as a distribution, and chats in terminals."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chat.terminal import Terminal
from tests.support.distribution import write_distribution
from tests.support.runtime import ROOT

PLUGIN = "from tests.chat.talker import exo_backends\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a fresh user who has the test backends installed."""
    packages = tmp_path / "packages"
    packages.mkdir()
    write_distribution(packages, "talker", PLUGIN)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EXO_") and k != "NO_COLOR"}
    return {
        **kept,
        "TERM": "xterm-256color",
        "EXO_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)]),
        "TALKER_GO": str(tmp_path / "go"),
    }


@pytest.fixture
def conversations(env: dict[str, str]) -> Path:
    return Path(env["EXO_HOME"]) / "conversations"


def command(*args: str, backend: str = "talker") -> list[str]:
    return [sys.executable, "-m", "exocli", "chat", "-b", backend, *args]


Start = Callable[..., Terminal]


@pytest.fixture
def start(env: dict[str, str]) -> Iterator[Start]:
    """start(*flags, backend="talker", stdout=None, **variables) opens a chat in a terminal."""
    opened: list[Terminal] = []

    def open_chat(
        *args: str, backend: str = "talker", stdout: int | None = None, **variables: str
    ) -> Terminal:
        terminal = Terminal(command(*args, backend=backend), {**env, **variables}, stdout)
        opened.append(terminal)
        return terminal

    yield open_chat
    for terminal in opened:
        terminal.close()
