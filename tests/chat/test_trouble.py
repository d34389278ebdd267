"""What goes wrong around a conversation leaves it alive: workers, contexts, disks, engines (B43, B51)."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.chat.conftest import Start, command
from tests.chat.terminal import CTRL_D, ENTER, Terminal
from tests.support.runtime import wait_gone


def test_a_worker_that_is_killed_in_a_reply(terminal: Terminal) -> None:
    terminal.send("slowly forever" + ENTER)
    terminal.until("slowly forever heard")
    (worker,) = terminal.workers()
    os.kill(worker, signal.SIGKILL)
    terminal.until("^exo: The worker of talker was killed")
    terminal.prompt()
    terminal.ask("go on", "heard 3: go on")
    terminal.send("please die" + ENTER)
    terminal.until("^exo: The worker of talker was killed", count=2)
    terminal.until("^Your message was taken back; /retry sends it again")
    terminal.prompt()
    terminal.ask("once more", "heard 5: once more")


def test_a_worker_that_is_killed_while_idle(terminal: Terminal) -> None:
    terminal.ask("hello", "heard 1: hello")
    (worker,) = terminal.workers()
    os.kill(worker, signal.SIGKILL)
    assert wait_gone(worker)
    terminal.ask("still there?", "heard 3: still there?")
    assert not any(line.startswith("exo:") for line in terminal.lines)


def test_over_the_context(terminal: Terminal) -> None:
    terminal.ask("hello", "heard 1: hello")
    terminal.ask("toolong", "^exo: The prompt has 1,500 tokens, the model's context holds 1,000\\.$")
    terminal.ask("short", "heard 3: short")
    terminal.send("/set temperature 13" + ENTER)
    terminal.prompt()
    terminal.ask("refused", r"^exo: temperature 13 is unlucky\.$")
    terminal.ask("/set temperature none", "^temperature = the model's own$")


def test_an_engine_that_cannot_be_opened_ends_the_chat(start: Start) -> None:
    terminal = start("-o", "load=fail")
    assert terminal.ended() == 3
    terminal.until(r"^exo: The talker's weights are cut off\.$")
    assert b"Traceback" not in terminal.raw


@pytest.mark.parametrize(
    ("load", "told"),
    [
        ("fail", "exo: The talker's weights are cut off.\n"),
        ("base", "exo: talker cannot chat (it has no chat template): choose another one with -m.\n"),
    ],
)
def test_engines_that_will_not_do_piped(env: dict[str, str], load: str, told: str) -> None:
    done = subprocess.run(
        command("-o", f"load={load}"), input=b"hi\nyou\n", env=env, capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr.decode()) == (3, b"", told)


def test_what_cannot_be_kept_is_told_once(start: Start, env: dict[str, str]) -> None:
    Path(env["EXO_HOME"]).write_text("a file where the home should be")
    terminal = start()
    terminal.prompt()
    terminal.ask("one", "heard 1: one")
    terminal.ask("two", "heard 3: two")
    told = " ".join(terminal.lines)
    assert told.count("cannot be saved (Not a directory); the chat goes on") == 1
    terminal.send(CTRL_D)
    assert terminal.ended() == 0


def test_flags_that_do_not_fit(env: dict[str, str]) -> None:
    for flags, words in (
        (["-c"], "no conversation to continue"),
        (["-c", "--resume", "x"], "not both"),
    ):
        done = subprocess.run(command(*flags), input=b"", env=env, capture_output=True, timeout=30)
        assert done.returncode == 2, flags
        assert words in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1
