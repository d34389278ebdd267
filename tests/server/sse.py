"""A strict parser of server-sent events, written from the specification alone.

WHATWG HTML, section 9.2.5 "Parsing an event stream" and 9.2.6 "Interpreting an event stream". Strict: what
that text merely tolerates (bytes that are not UTF-8, an event cut off at the end, unknown fields) fails.
"""

from __future__ import annotations

from dataclasses import dataclass

FIELDS = ("event", "data", "id", "retry")


@dataclass(frozen=True)
class Event:
    type: str
    data: str


def lines_of(text: str) -> list[str]:
    """Lines end at CR LF, LF or CR, and at nothing else (not at U+2028 or U+0085)."""
    lines, current, index = [], "", 0
    while index < len(text):
        char = text[index]
        if char in "\r\n":
            lines.append(current)
            current = ""
            if text[index : index + 2] == "\r\n":
                index += 1
        else:
            current += char
        index += 1
    assert current == "", f"the stream ends within a line: {current[:80]!r}"
    return lines


def parse(raw: bytes, comments: list[str] | None = None) -> list[Event]:
    """The events of a whole stream; comments are appended to `comments`."""
    text = raw.decode("utf-8", "strict")
    if text.startswith("\ufeff"):
        text = text[1:]
    events: list[Event] = []
    kind, data = "", []
    for line in lines_of(text):
        if line == "":
            if data:
                events.append(Event(kind or "message", "\n".join(data)))
            kind, data = "", []
            continue
        field, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "":
            assert colon
            if comments is not None:
                comments.append(value)
        else:
            assert field in FIELDS, f"unknown field {field!r}"
            if field == "event":
                kind = value
            elif field == "data":
                data.append(value)
    assert not data, "the stream ends within an event"
    assert not kind, "the stream ends within an event"
    return events
