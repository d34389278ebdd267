"""Server-sent events against the standard, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_remote import sse
from exo_remote.sse import Comment, Event, EventStream, JsonLines, LineTooLong


def parse(data: bytes, size: int | None = None) -> list[Event | Comment]:
    stream = EventStream()
    size = size or len(data) or 1
    return [item for at in range(0, len(data), size) for item in stream.feed(data[at : at + size])]


@pytest.mark.parametrize("size", [None, 1, 2, 3])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends_and_cuts(end: bytes, size: int | None):
    text = end.join(
        [b": hello", b"data: one", b"", b"event: e", b"id: 7", b"data:two", b"data:  three", b"", b""]
    )
    expected = [Comment("hello"), Event("one"), Event("two\n three", "e", "7")]
    assert parse(text, size) == expected


def test_a_bom_is_skipped_once():
    assert parse(b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbfb\n\n", 1) == [Event("a"), Event("\ufeffb")]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: a\xe2\x80\xa8b\xc2\x85c\x0bd\x1ee\n\n", [Event("a\u2028b\x85c\x0bd\x1ee")]),
        (b"data\n\n", [Event("")]),
        (b"data:\ndata:\n\n", [Event("\n")]),
        (b"event: lonely\n\ndata: x\n\n", [Event("x")]),
        (b"id: 1\ndata: a\n\ndata: b\n\n", [Event("a", id="1"), Event("b", id="1")]),
        (b"id: a\0b\ndata: x\n\n", [Event("x")]),
        (b"retry: 10\nwhat: ever\ndata: x\n\n", [Event("x")]),
        (b"data: cut off\n", []),
        (b":\n:  two\n", [Comment(""), Comment(" two")]),
        (b"data: \xff\n\n", [Event("\ufffd")]),
        (b"\r\n\r\ndata: x\r\n\r\n", [Event("x")]),
    ],
)
def test_the_standards_corners(raw: bytes, expected: list[Event | Comment]):
    for size in (None, 1):
        assert parse(raw, size) == expected


def test_a_cr_ends_its_line_before_more_is_known():
    stream = EventStream()
    assert list(stream.feed(b"data: x\r\r")) == [Event("x")]
    assert list(stream.feed(b"\ndata: y\r\n\r")) == [Event("y")]


PIECES = st.sampled_from(
    [
        *(b"data: ", b"data:", b"data", b":", b"event: e", b"id: 1", b"x", b" ", b"\n", b"\r", b"\r\n"),
        *("é\u2028😀".encode(), b"\xff", b"\xef\xbb\xbf"),
    ]
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=40), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_where_the_bytes_are_cut_changes_nothing(pieces: list[bytes], sizes: list[int]):
    data = b"".join(pieces)
    stream, found, at, turn = EventStream(), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += stream.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert found == parse(data) == parse(data, 1)


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), min_size=1),
    st.data(),
)
def test_what_is_written_is_read(lines: list[str], data: st.DataObject):
    ends = [data.draw(st.sampled_from(["\n", "\r\n", "\r"])) for _ in range(len(lines) + 1)]
    text = "".join(f"data: {line}{end}" for line, end in zip(lines, ends, strict=False)) + ends[-1]
    # A CR that the next line end completes would be one end, not two.
    if not (ends[-2] == "\r" and ends[-1] == "\n"):
        assert parse(text.encode()) == [Event("\n".join(lines))]


def test_a_line_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "MAX_LINE", 100)
    with pytest.raises(LineTooLong):
        parse(b"data: " + b"x" * 200, 10)


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))), st.integers(1, 7)
)
def test_json_lines(lines: list[str], size: int):
    data = "\n".join(lines).encode()
    parser, found = JsonLines(), []
    for at in range(0, len(data), size):
        found += parser.feed(data[at : at + size])
    found += parser.end()
    assert [item.data for item in found] == [
        line for line in (x.removeprefix("\ufeff").strip() for x in lines) if line
    ]
