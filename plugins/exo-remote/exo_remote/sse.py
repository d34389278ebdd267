"""Server-sent events and JSON lines out of bytes, however they are cut. Pure.

SSE: WHATWG HTML, "Interpreting an event stream". Comments are handed on: servers report progress in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MAX_LINE = 64 * 1024 * 1024
"""Bytes. What is longer is no reply of a language model."""
_BOM = b"\xef\xbb\xbf"


class LineTooLong(ValueError):
    """The server sends a line that does not end."""


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event; `type` is "message" unless the server named it."""

    data: str
    type: str = "message"
    id: str = ""


@dataclass(frozen=True, slots=True)
class Comment:
    text: str


class _Lines:
    """Bytes → whole lines without their ends. A CR at the end of a piece ends its line at once; an LF that
    begins the next piece belongs to it."""

    def __init__(self, *, cr: bool) -> None:
        self._cr = cr
        self._rest = bytearray()
        self._seen = 0
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        if self._after_cr and piece:
            self._after_cr = False
            if piece[:1] == b"\n":
                piece = piece[1:]
        self._rest += piece
        while (end := self._end()) >= 0:
            line = bytes(self._rest[:end])
            size = 1
            if self._rest[end] == 0x0D:
                if end + 1 == len(self._rest):
                    self._after_cr = True
                elif self._rest[end + 1] == 0x0A:
                    size = 2
            del self._rest[: end + size]
            self._seen = 0
            yield line
        self._seen = len(self._rest)  # what has been searched is not searched again
        if self._seen > MAX_LINE:
            raise LineTooLong

    def _end(self) -> int:
        lf = self._rest.find(b"\n", self._seen)
        if not self._cr:
            return lf
        cr = self._rest.find(b"\r", self._seen, lf if lf >= 0 else len(self._rest))
        return cr if cr >= 0 else lf

    def rest(self) -> bytes:
        return bytes(self._rest)


class EventStream:
    """Feed bytes, get events and comments in order. An event that the end of the stream cuts off is not
    dispatched, as the standard says."""

    def __init__(self) -> None:
        self._lines = _Lines(cr=True)
        self._first = True
        self._data: list[str] = []
        self._type = ""
        self._id = ""

    def feed(self, piece: bytes) -> Iterator[Event | Comment]:
        """Raises LineTooLong."""
        for raw in self._lines.feed(piece):
            if self._first:
                self._first = False
                raw = raw.removeprefix(_BOM)
            found = self._line(raw.decode("utf-8", "replace"))
            if found is not None:
                yield found

    def end(self) -> Iterator[Event | Comment]:
        """Nothing: see above."""
        yield from ()

    def _line(self, line: str) -> Event | Comment | None:
        if not line:
            return self._dispatch()
        name, colon, value = line.partition(":")
        if not name and colon:
            return Comment(value.removeprefix(" "))
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> Event | None:
        data, kind = self._data, self._type
        self._data, self._type = [], ""
        return Event("\n".join(data), kind or "message", self._id) if data else None


class JsonLines:
    """Feed bytes, get an event for each line that holds something. The last one need not be ended."""

    def __init__(self) -> None:
        self._lines = _Lines(cr=False)

    def feed(self, piece: bytes) -> Iterator[Event | Comment]:
        """Raises LineTooLong."""
        for line in self._lines.feed(piece):
            yield from _of_line(line)

    def end(self) -> Iterator[Event | Comment]:
        yield from _of_line(self._lines.rest())


def _of_line(raw: bytes) -> Iterator[Event]:
    text = raw.removeprefix(_BOM).decode("utf-8", "replace").strip()
    if text:
        yield Event(text)
