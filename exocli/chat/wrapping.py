"""Breaks a reply's lines between words while it is written, since a terminal breaks them anywhere.

Pure: pieces of text in, what to write out. A word that turns out too long for its row is taken back from
there and begun on the next one, so nothing waits. Code stays as it is, for whoever copies it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len

_PARTS = re.compile(r"\n|[^\S\n]+|\S+")
_FENCES = ("```", "~~~")
TAB = 8


class Wrap:
    """`columns` gives the terminal's width, asked for at each row. The last column is left free: after a
    character there, terminals disagree about where they are."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._room = max(columns() - 1, 1)
        self._column = 0
        self._word = ""
        self._line = ""
        self._fenced = False

    def feed(self, piece: str) -> str:
        """What to write for the next piece of the reply, however it is cut."""
        return "".join(self._part(part) for part in _PARTS.findall(piece))

    def _part(self, part: str) -> str:
        if part == "\n":
            if self._line.lstrip().startswith(_FENCES):
                self._fenced = not self._fenced
            self._line = ""
            return self._new_row("\n")
        self._line += part
        width = cell_len(part)
        if self._fenced or self._line.lstrip().startswith((*_FENCES, "|")):
            self._word = ""
            self._column += width
            return part
        if part.isspace():
            self._word = ""
            width += sum(TAB - 1 for character in part if character == "\t")
            fits = self._column + width <= self._room
            self._column += width
            return part if fits else ""  # a row's end needs no blanks
        word, self._word = self._word, self._word + part
        if self._column + width <= self._room:
            self._column += width
            return part
        if cell_len(self._word) > self._room:  # longer than a row: the terminal breaks it
            self._column = (self._column + width) % (self._room + 1)
            return part
        taken_back = f"\x1b[{cell_len(word)}D\x1b[K" if word else ""
        return taken_back + self._new_row("\n", self._word)

    def _new_row(self, end: str, word: str = "") -> str:
        self._room = max(self._columns() - 1, 1)
        self._word = word
        self._column = cell_len(word)
        return end + word
