"""Guesses agree with a search of the whole text, and a loop goes on as a loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exo_mlx.lookup import LONGEST, SHORTEST, Lookup


def searched(text: list[int], pending: int, limit: int) -> list[int]:
    """The same by trying every place."""
    whole = [*text, pending]
    best, length = -1, SHORTEST - 1
    for place in range(len(text) - 1, -1, -1):
        agreed = 0
        while agreed < min(LONGEST, place + 1) and whole[place - agreed] == whole[-1 - agreed]:
            agreed += 1
        if agreed > length:
            best, length = place, agreed
    if best < 0:
        return []
    for _ in range(limit):
        whole.append(whole[best + 1])
        best += 1
    return whole[-limit:]


@given(st.lists(st.integers(0, 3), max_size=15), st.integers(0, 3), st.integers(1, 12))
def test_a_guess_is_what_a_search_of_the_whole_text_finds(text: list[int], pending: int, limit: int) -> None:
    lookup = Lookup()
    for end in range(len(text) + 1):  # told bit by bit
        lookup.follow(text[:end])
    assert lookup.guess(pending, limit) == searched(text, pending, limit)


def test_a_loop_goes_on() -> None:
    lookup = Lookup()
    lookup.follow([7, 1, 2, 3, 1, 2, 3, 1])
    assert lookup.guess(2, 7) == [3, 1, 2, 3, 1, 2, 3]


def test_the_latest_of_equal_places_is_copied() -> None:
    lookup = Lookup()
    lookup.follow([1, 2, 8, 1, 2, 9, 1])
    assert lookup.guess(2, 1) == [9]


def test_nothing_is_guessed_for_a_text_that_is_new() -> None:
    lookup = Lookup()
    assert not lookup.repeats() and lookup.guess(1, 4) == []
    lookup.follow([1, 2, 3, 4])
    assert not lookup.repeats() and lookup.guess(9, 4) == []
    lookup.follow([1, 2, 3, 4, 2, 3])
    assert lookup.repeats()
