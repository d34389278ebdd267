"""What the tests of commands share: an empty home, plugins of their own, and two ways to run `exo`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from exocli import plugins
from exocli.cli import plugin_commands
from exocli.cli.main import main

from tests.support.distribution import write_distribution

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """EXO_HOME, with nothing of the developer's own settings."""
    for name in [name for name in os.environ if name.startswith("EXO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EXO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EXO_NO_PLUGINS", "")  # --no-plugins sets it; this takes it back
    before = signal.getsignal(signal.SIGTERM)
    forget_plugins()
    yield tmp_path / "home"
    signal.signal(signal.SIGTERM, before)
    forget_plugins()


def forget_plugins() -> None:
    plugins.manager.cache_clear()
    plugin_commands._warned = False


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of distributions, on sys.path here and in processes that are started."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{ROOT}")
    return folder


@pytest.fixture
def shelf(site: Path) -> Path:
    """The backend of tests/support/shelf.py, installed; its folder of models."""
    write_distribution(site, "shelf-plugin", "from tests.support.shelf import exo_backends\n")
    forget_plugins()
    return Path(os.environ["EXO_HOME"]) / "models" / "shelf"


@pytest.fixture
def talker(site: Path) -> None:
    """The backends of tests/chat/talker.py, installed."""
    write_distribution(site, "talker", "from tests.chat.talker import exo_backends\n")
    forget_plugins()


@pytest.fixture
def exo(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run a command line in this process."""

    def run(*args: str) -> Result:
        capsys.readouterr()
        code = main(args)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `exo` as a process of its own; what is left at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, **more: object) -> subprocess.Popen[str]:
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
        process = subprocess.Popen([sys.executable, "-m", "exocli", *args], **settings)  # type: ignore[call-overload]
        started.append(process)
        return process  # type: ignore[no-any-return]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
