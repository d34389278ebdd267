"""The clocks over the ranks, by themselves: what counts as late, for whom, and who is named."""

from __future__ import annotations

import time

import pytest
from exocli import CancelToken
from exocli.runtime import watchdog
from exocli.runtime.live import Live
from exocli.runtime.watchdog import Watchdog


class Ranks:
    """A watchdog over `size` ranks with one request, `usual` seconds a step."""

    def __init__(self, size: int, usual: float = 0.1, stall_timeout: float | None = None) -> None:
        self.live: dict[str, Live] = {}
        self.prepares: dict[str, object] = {}
        self.dog = Watchdog(
            "b",
            size,
            self.live,
            name="rank {}".format,
            usual=lambda: usual,
            prepares=self.prepares,
            stall_timeout=stall_timeout,
        )
        self.dog.begin()
        self.one = self.live["one"] = Live(id="one", cancel=CancelToken())
        self.now = time.monotonic()

    def stalled(self, after: float) -> str | None:
        found = self.dog.stalled(self.now + after)
        return found.message if found is not None else None


def test_one_rank_is_never_too_slow() -> None:
    assert Ranks(1, stall_timeout=0.1).stalled(1e6) is None


def test_of_several_the_silent_one_is_named() -> None:
    ranks = Ranks(3)
    assert ranks.stalled(watchdog.BEAT_LIMIT - 0.5) is None
    ranks.one.left = {0}  # it owes nothing any more
    assert ranks.stalled(watchdog.BEAT_LIMIT + 0.5) == "rank 1 of b gives no sign of life."
    ranks.one.left = {0, 1}
    assert ranks.stalled(watchdog.BEAT_LIMIT + 0.5) == "rank 2 of b gives no sign of life."
    assert [ranks.dog.silent_s(rank) for rank in (0, 1)] == [0.0, 0.0]


def test_a_rank_that_prepares_owes_a_sign_of_life() -> None:
    ranks = Ranks(2)
    ranks.live.clear()
    assert ranks.stalled(1e6) is None
    ranks.prepares["one"] = object()
    assert ranks.stalled(watchdog.BEAT_LIMIT - 0.5) is None
    assert ranks.stalled(watchdog.BEAT_LIMIT + 0.5) == "rank 0 of b gives no sign of life."
    ranks.dog.heard(0)
    ranks.now = time.monotonic()
    assert ranks.stalled(watchdog.BEAT_LIMIT - 0.5) is None, "how long it takes is no matter, if it beats"


@pytest.mark.parametrize(("usual", "own", "limit"), [(0.1, None, 60), (10.0, None, 200), (10.0, 5.0, 5)])
def test_ranks_that_beat_and_make_no_step(
    usual: float, own: float | None, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "BEAT_LIMIT", 1e9)
    ranks = Ranks(2, usual, own)
    assert ranks.stalled(limit - 1) is None
    assert ranks.stalled(limit + 1) == f"No rank of b has finished a step for {limit} s."


def test_with_the_timeout_off_only_a_deaf_rank_counts() -> None:
    ranks = Ranks(2, stall_timeout=0)
    assert ranks.stalled(1e6) is None
    ranks.one.cancel_sent = ranks.now
    assert ranks.stalled(1e6) == "rank 0 of b did not answer a cancel; it was ended."


@pytest.mark.parametrize(("usual", "deadline"), [(0.01, 2.0), (1.0, 5.0)])
def test_a_cancel_has_twice_its_deadline(usual: float, deadline: float) -> None:
    ranks = Ranks(1, usual)
    assert ranks.dog.cancel_deadline == deadline
    ranks.one.cancel_sent, ranks.one.left = ranks.now, set()
    assert ranks.stalled(2 * deadline - 0.1) is None
    assert ranks.stalled(2 * deadline + 0.1) == "rank 0 of b did not answer a cancel; it was ended."
    assert ranks.dog.missing(ranks.one) == "rank 0"


def test_after_standing_still_every_clock_starts_anew() -> None:
    ranks = Ranks(2)
    ranks.one.cancel_sent = ranks.now
    ranks.dog.restart(ranks.now + 100)
    assert ranks.one.cancel_sent == ranks.now + 100
    assert ranks.stalled(101) is None and ranks.stalled(110) is not None


def test_a_request_after_a_long_pause_starts_the_clocks() -> None:
    ranks = Ranks(2)
    ranks.live.clear()
    ranks.dog.restart(ranks.now - 1000)
    ranks.dog.begin()
    ranks.live["two"] = Live(id="two", cancel=CancelToken())
    assert ranks.stalled(1) is None
