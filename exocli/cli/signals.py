"""How a command ends when a signal asked for it: by that signal, after its last words.

A shell then shows 130 or 143 and a loop in it stops; a program that only exits with 130 lets it go on.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn


class Terminated(BaseException):
    """SIGTERM arrived. Not an Exception: nothing on the way up may mistake it for a failure."""


def _raise_terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def raise_on_terminate() -> None:
    """From now on SIGTERM raises Terminated in the main thread, so that `finally` blocks run."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _raise_terminated)


def end_by(number: int) -> NoReturn:
    """Flush what was written, then end as the untouched default action of this signal would."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # not reached where the default action ends a process, as for all we pass


def adopt_standard_streams() -> None:
    """Make 0, 1 and 2 exist, so that a file opened later does not become someone's standard output.

    A closed input reads as empty. A closed output is opened the wrong way round: to write to it fails,
    as it would have, instead of losing the text in silence.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # the lowest free number, which is this one
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):  # what a locale has no letter for is escaped, not an error
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def give_up_output() -> None:
    """After a failure: if stdout is what failed, let the interpreter not stumble over it once more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
