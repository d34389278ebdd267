"""The plain editor on a real pipe, the history on a real file. The terminal's is tested in a terminal."""

from __future__ import annotations

import asyncio
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from exocli.chat.editor import EmptyInterrupt, LineEditor, clean
from exocli.chat.history import KEEP, LineHistory
from exocli.chat.shown import printable
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            continue


async def test_a_line_is_a_message(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    editor = LineEditor(reading, None)
    os.write(writing, b"one\r\ntw")
    assert await editor.read() == "one"
    second = asyncio.create_task(editor.read())
    os.write(writing, "ö\nlast without an end".encode())
    assert await second == "twö"
    os.close(writing)
    assert await editor.read() == "last without an end"
    with pytest.raises(EOFError):
        await editor.read()


async def test_interrupt_and_close_end_a_read_and_lose_nothing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    out = io.StringIO()
    editor = LineEditor(reading, out)
    waiting = asyncio.create_task(editor.read())
    await asyncio.sleep(0)
    editor.interrupt()
    with pytest.raises(EmptyInterrupt):
        await waiting
    waiting = asyncio.create_task(editor.read())
    await asyncio.sleep(0)
    editor.close()
    with pytest.raises(EOFError):
        await waiting
    os.write(writing, b"here\n")
    assert await editor.read() == "here"
    assert out.getvalue() == "> \n> > "
    editor.interrupt()  # nobody reads: nothing happens
    os.write(writing, b"there\n")
    assert await editor.read() == "there"
    os.close(writing)


def test_clean() -> None:
    assert clean("a\r\nb\rc\n\0d") == "a\nb\nc\nd"
    assert clean(b"caf\xe9".decode("utf-8", "surrogateescape")) == "caf\ufffd"


@given(st.text())
def test_what_is_clean_stays_so_and_can_be_sent(text: str) -> None:
    once = clean(text)
    once.encode()
    assert clean(once) == once


@given(st.text())
def test_printable_has_no_control_bytes(text: str) -> None:
    left = printable(text)
    assert all(c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160) for c in left)
    assert printable("a\x1b[31mb\tc\nd\r") == "a[31mb\tc\nd"


def test_history_comes_back_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history"
    history = LineHistory(path)
    for text in ("one", "two\nlines", "drei ü \u2028"):
        history.store_string(text)
    assert list(LineHistory(path).load_history_strings()) == ["drei ü \u2028", "two\nlines", "one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_history_survives_rubbish_and_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'\xff\n{"a": 1}\n' + b"".join(b'"%d"\n' % n for n in range(2 * KEEP + 1)))
    entries = list(LineHistory(path).load_history_strings())
    assert len(entries) == KEEP
    assert entries[0] == str(2 * KEEP)
    assert len(path.read_bytes().splitlines()) == KEEP
    assert list(tmp_path.iterdir()) == [path]


def test_history_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = LineHistory(tmp_path / "file" / "history")
    history.store_string("one")
    assert list(history.load_history_strings()) == []
