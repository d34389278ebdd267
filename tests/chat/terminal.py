"""A terminal for the tests: a real pty with a real screen behind it, and a chat that runs in it.

What a person would see is `lines`; every wait is for something to appear there.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyte

from tests.support.runtime import alive

WAIT_S = 40.0
ROWS, COLUMNS = 40, 100
# The first thing in the new session: make the pty its controlling terminal.
_LAUNCH = (
    "import fcntl,os,sys,termios; fcntl.ioctl(0,termios.TIOCSCTTY,0); os.execvp(sys.argv[1],sys.argv[1:])"
)
CTRL_C, CTRL_D, CTRL_L, CTRL_Z, TAB, ENTER, ALT_ENTER = "\x03", "\x04", "\x0c", "\x1a", "\t", "\r", "\x1b\r"


class Terminal:
    """`stdout`: where the program's standard output goes instead of the pty."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], stdout: int | None = None) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (ROWS, COLUMNS))
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", _LAUNCH, *command],
            stdin=slave,
            stdout=stdout if stdout is not None else slave,
            stderr=slave,
            env=dict(env),
            start_new_session=True,
        )
        self._slave = slave

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def cursor_line(self) -> str:
        return self.lines[self._screen.cursor.y]

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _feed(self, timeout: float) -> bool:
        """Take what comes; False if nothing did, or the other side is closed."""
        if not select.select([self._master], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def until(self, pattern: str, count: int = 1) -> str:
        """Wait until the screen shows the pattern `count` times; → the (last) match."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = list(re.finditer(pattern, "\n".join(self.lines), re.MULTILINE))
            if len(found) >= count:
                return found[-1][0]
            if time.monotonic() > deadline or (not self._feed(0.2) and self.process.poll() is not None):
                shown = "\n".join(line for line in self.lines if line)
                raise AssertionError(f"no {pattern!r} on the screen:\n{shown}")

    def prompt(self, text: str = "") -> None:
        """Wait until the cursor stands in the editor and the editor holds `text` (its last line)."""
        deadline = time.monotonic() + WAIT_S
        while self.cursor_line not in (f"> {text}".rstrip(), f". {text}".rstrip()):
            if time.monotonic() > deadline or (not self._feed(0.2) and self.process.poll() is not None):
                shown = "\n".join(line for line in self.lines if line)
                raise AssertionError(f"no prompt with {text!r}:\n{shown}")

    def offered(self, text: str) -> None:
        """Wait until the editor offers a message that was taken back, and nothing is typed."""
        self.prompt(f"Enter sends again, Tab edits: {text}")

    def ask(self, text: str, answer: str) -> None:
        """At the prompt: send a message, wait for the answer and the next prompt."""
        self.send(text + ENTER)
        self.until(answer)
        self.prompt()

    def afresh(self) -> None:
        """At a prompt: begin a new conversation on an empty screen."""
        self.send("/clear" + ENTER)
        self.until("^A new conversation")
        self.prompt()
        self.send(CTRL_L)
        while self.cursor_line != self.lines[0]:
            assert self._feed(WAIT_S)
        self.prompt()
        self.raw = b""

    def ended(self) -> int:
        """Wait for the end; the exit status (negative: by that signal)."""
        deadline = time.monotonic() + WAIT_S
        while self.process.poll() is None:
            self._feed(0.05)
            assert time.monotonic() < deadline, "\n".join(self.lines)
        while self._feed(0.05):
            pass
        return self.process.returncode

    def workers(self) -> list[int]:
        return workers_of(self.process.pid)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


def workers_of(parent: int) -> list[int]:
    """The worker processes below `parent`, found from outside."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if above == parent and b"exocli.runtime.worker" in words and alive(int(folder.name)):
            found.append(int(folder.name))
    return found
