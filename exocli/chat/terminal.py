"""The terminal's mode while a conversation runs: no echo, keys kept for the next prompt, Ctrl-C a signal.

What is typed while a reply is being written waits in the terminal until the editor asks for it, a paste
included. Knows termios and job control, nothing of what runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from types import TracebackType
from typing import TextIO

PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


class Quiet:
    """Use as a context; `suspend` stops the program as Ctrl-Z should and comes back to the same mode."""

    def __init__(self, stdin: TextIO, stdout: TextIO) -> None:
        self._fd = stdin.fileno()
        self._out = stdout
        self._before = termios.tcgetattr(self._fd)

    def __enter__(self) -> Quiet:
        self._apply()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def hold_pastes(self) -> None:
        """The editor switches bracketed paste off when it is done; keep it on, so that a paste made now
        is still one message at the next prompt."""
        self._write(PASTE_ON)

    def suspend(self) -> None:
        """Stop until continued, with the terminal as it was found meanwhile. SIGTSTP must have its default
        action."""
        self._restore()
        os.kill(os.getpid(), signal.SIGTSTP)
        self._apply()
        self.hold_pastes()

    def _apply(self) -> None:
        iflag, oflag, cflag, lflag, ispeed, ospeed, cc = self._before
        lflag = (lflag & ~(termios.ECHO | termios.ICANON)) | termios.ISIG
        iflag &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
        cc = list(cc)
        cc[termios.VMIN], cc[termios.VTIME] = 1, 0
        self._set([iflag, oflag, cflag, lflag, ispeed, ospeed, cc])

    def _restore(self) -> None:
        self._write(PASTE_OFF)
        self._set(self._before)

    def _set(self, attributes: list[int | list[bytes | int]]) -> None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, attributes)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._out.write(text)
            self._out.flush()
