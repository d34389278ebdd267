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


def environment(folder: Path) -> dict[str, str]:
    """That of a fresh user who has the test backends installed."""
    packages = folder / "packages"
    packages.mkdir()
    write_distribution(packages, "talker", PLUGIN)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EXO_") and k != "NO_COLOR"}
    return {
        **kept,
        "TERM": "xterm-256color",
        "EXO_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)]),
        "TALKER_GO": str(folder / "go"),
    }


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path)


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


class Shared:
    """A module's one chat, for tests that need no flags and leave it at a prompt."""

    def __init__(self, folder: Path) -> None:
        self._env = environment(folder)
        self._terminal: Terminal | None = None
        self.conversations = Path(self._env["EXO_HOME"]) / "conversations"

    def afresh(self) -> Terminal:
        """A new conversation, in a new chat if a test has left the last one in the middle of something."""
        for path in self.conversations.glob("*.json"):
            path.unlink()
        if self._terminal is not None:
            try:
                self._terminal.afresh()
                return self._terminal
            except AssertionError:
                self.close()
        self._terminal = Terminal(command(), self._env)
        self._terminal.prompt()
        return self._terminal

    def close(self) -> None:
        if self._terminal is not None:
            self._terminal.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    opened = Shared(tmp_path_factory.mktemp("shared"))
    yield opened
    opened.close()


@pytest.fixture
def terminal(shared: Shared) -> Terminal:
    """A chat at a prompt, with nothing said in it."""
    return shared.afresh()
