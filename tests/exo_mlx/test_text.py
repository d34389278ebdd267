"""StopBuffer: never a part of a stop string, never a lost character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exo_mlx.text import StopBuffer

PIECES = st.lists(st.text(alphabet="abc\n", max_size=4), max_size=20)
STOPS = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=4), max_size=3)


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    buffer = StopBuffer(stops)
    shown = ""
    for piece in pieces:
        text, stop = buffer.feed(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + buffer.flush(), None


@given(PIECES, STOPS)
def test_streamed_text_equals_the_whole_text_cut_at_the_first_stop(
    pieces: list[str], stops: list[str]
) -> None:
    whole = "".join(pieces)
    shown, stop = run(pieces, stops)
    found = [at for s in stops if (at := whole.find(s)) >= 0]
    if not found:
        assert (shown, stop) == (whole, None)
    else:
        # Piece by piece, a stop may complete before one that begins earlier but ends later.
        assert stop is not None
        assert whole.startswith(shown + stop)
        assert not any(s in shown for s in stops)


@given(PIECES, STOPS)
def test_nothing_shown_is_ever_a_part_of_a_stop_that_follows(pieces: list[str], stops: list[str]) -> None:
    buffer = StopBuffer(stops)
    shown = ""
    for piece in pieces:
        text, stop = buffer.feed(piece)
        shown += text
        if stop is not None:
            break
        so_far = shown + buffer._held
        begun = [size for s in stops for size in range(1, len(s)) if so_far.endswith(s[:size])]
        assert max(begun, default=0) <= len(buffer._held)


def test_no_stop_holds_nothing_back() -> None:
    assert StopBuffer([]).feed("abc") == ("abc", None)


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "stop"),
    [
        (["Hello St", "op now"], ["Stop"], "Hello ", "Stop"),
        (["a", "b", "c"], ["abc", "abd"], "", "abc"),
        (["abab", "c"], ["abc"], "ab", "abc"),
        (["x<|e", "nd"], ["<|end|>"], "x<|end", None),
        (["end\n\n", "more"], ["\n\n"], "end", "\n\n"),
        (["abcd"], ["b", "bc"], "a", "bc"),
    ],
)
def test_cases(pieces: list[str], stops: list[str], shown: str, stop: str | None) -> None:
    assert run(pieces, stops) == (shown, stop)
