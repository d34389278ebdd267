"""The Ctrl-C table's rule, with a clock in hand."""

from __future__ import annotations

from exocli.chat.stopping import ONE_PRESS_S, Stopping
from hypothesis import given
from hypothesis import strategies as st


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_presses_within_a_second_are_one() -> None:
    clock = Clock()
    stopping = Stopping(clock)
    assert stopping.press() == "cancel"
    for now in (0.0, 0.4, 0.999):
        clock.now = now
        assert stopping.press() == "nothing"
        assert stopping.recent


def test_a_later_press_brings_the_offer_and_only_one_after_it_kills() -> None:
    clock = Clock()
    stopping = Stopping(clock)
    stopping.press()
    clock.now = 1.0
    assert not stopping.recent
    assert stopping.press() == "offer"
    assert stopping.press() == "kill"
    assert stopping.press() == "nothing"


def test_an_overdue_cancel_makes_the_offer_by_itself_once() -> None:
    clock = Clock()
    stopping = Stopping(clock)
    assert not stopping.overdue(2.0), "nothing was asked"
    stopping.press()
    clock.now = 1.9
    assert not stopping.overdue(2.0)
    clock.now = 2.0
    assert stopping.overdue(2.0)
    assert not stopping.overdue(2.0)
    assert stopping.press() == "kill"


@given(st.lists(st.floats(0, 0.7), min_size=1, max_size=20))
def test_no_kill_without_an_offer_and_no_offer_in_the_first_second(gaps: list[float]) -> None:
    clock = Clock()
    stopping = Stopping(clock)
    offered = False
    for number, gap in enumerate(gaps):
        clock.now += gap if number else 0.0
        meaning = stopping.press()
        assert (meaning == "cancel") == (number == 0)
        if meaning == "offer":
            assert clock.now >= ONE_PRESS_S
            offered = True
        if meaning == "kill":
            assert offered
