"""Where a prompt comes from: the argument, files, standard input. Document first, question last."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from exocli.errors import UsageError

SILENCE_S = 2.0


def gather(prompt: str | None, files: Sequence[str], *, read_stdin: bool, note: Callable[[str], None]) -> str:
    """All of it, joined by blank lines. Raises UsageError for a file that cannot be read, for text that
    is not UTF-8, and if there is nothing at all."""
    parts = [_read_stdin(note) if read_stdin and _piped() else ""]
    parts += [_read_file(name) for name in files]
    parts.append(prompt or "")
    text = "\n\n".join(part.strip("\n") for part in parts if part.strip())
    if not text:
        raise UsageError('There is no prompt: give one as in exo run "Why is the sky blue?", or pipe one in.')
    return text


def lines(files: Sequence[str], *, read_stdin: bool, note: Callable[[str], None]) -> tuple[str, ...]:
    """Each line of the files, or of standard input, the empty ones too: line N is of text N. Raises
    UsageError as `gather`."""
    texts = [_read_stdin(note)] if read_stdin and _piped() else [_read_file(name) for name in files]
    return tuple(line for text in texts for line in text.removesuffix("\n").split("\n") if text)


def _piped() -> bool:
    """A pipe, a socket or a file; not a terminal, not /dev/null, not a closed input."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read_stdin(note: Callable[[str], None]) -> str:
    # A pipe that nobody writes to (cron, CI, an editor's shell) would look like a hang: say what is awaited.
    if not select.select([0], [], [], SILENCE_S)[0]:
        note("Waiting for standard input (--no-stdin goes on without it).")
    return _decode(sys.stdin.buffer.read(), "Standard input")


def _read_file(name: str) -> str:
    try:
        return _decode(Path(name).expanduser().read_bytes(), name)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}.") from error


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (byte {error.start}).") from error
