"""Wrapped replies on a real screen (pyte's), cut into pieces in every way."""

from __future__ import annotations

import pyte
import pytest
from exocli.chat.wrapping import Wrap
from hypothesis import given
from hypothesis import strategies as st

COLUMNS = 20


def shown(pieces: list[str]) -> list[str]:
    """The screen's rows after the pieces were written."""
    screen = pyte.Screen(COLUMNS, 200)
    stream = pyte.Stream(screen)
    wrap = Wrap(lambda: COLUMNS)
    for piece in pieces:
        stream.feed(wrap.feed(piece).replace("\n", "\r\n"))
    return [row.rstrip() for row in screen.display[: screen.cursor.y + 1]]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_word_is_never_cut(size: int) -> None:
    text = "The capital of France is Paris, an artist's dream."
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert shown(pieces) == ["The capital of", "France is Paris, an", "artist's dream."]


def test_code_and_tables_stay_as_they_are() -> None:
    before = "Look here: this is it\n```py\nprint('a long line of code')\n```\n"
    after = "and so it goes on and on\n| a | table row that is long |"
    assert shown([before + after]) == [
        "Look here: this is",
        "it",
        "```py",
        "print('a long line o",
        "f code')",
        "```",
        "and so it goes on",
        "and on",
        "| a | table row that",
        " is long |",
    ]


def test_a_word_longer_than_a_row_is_left_to_the_terminal() -> None:
    assert shown(["see https://example.org/", "a/very/long/path now"]) == [
        "see https://example.",
        "org/a/very/long/path",
        " now",
    ]


def test_wide_characters_count_twice() -> None:
    assert shown(["漢字 漢字漢字 漢字漢字"]) == ["漢字 漢字漢字", "漢字漢字"]


WORD = st.text(st.sampled_from("abcdef.漢é"), min_size=1, max_size=9)


@given(st.lists(WORD, min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_words_come_out_whole_and_in_order(words: list[str], chance: object) -> None:
    text, pieces = " ".join(words), []
    while text:
        cut = chance.randint(1, 12)  # type: ignore[attr-defined]
        pieces.append(text[:cut])
        text = text[cut:]
    assert " ".join(shown(pieces)).split() == words
