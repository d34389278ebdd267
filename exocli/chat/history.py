"""The lines typed before, for the up arrow: a file of JSON strings that only its owner may read.

A file that cannot be written costs the memory of the next start, never the conversation.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History

KEEP = 1000
"""Entries that a start takes over from the last one."""


class LineHistory(History):
    """Entries oldest first, one JSON string a line; shortened to KEEP when twice as many have come in."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Newest first."""
        entries: list[str] = []
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, str):
                        entries.append(entry)
        if len(entries) > 2 * KEEP:
            entries = entries[-KEEP:]
            with contextlib.suppress(OSError):
                part = self._path.with_suffix(f".{os.getpid()}")
                self._append(part, entries)
                part.replace(self._path)
        return reversed(entries)

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._append(self._path, [string])

    @staticmethod
    def _append(path: Path, entries: Iterable[str]) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries)
