from __future__ import annotations

from exocli.chat.waiting import Waiting
from exocli.types import Progress, Started, Status


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def begin() -> tuple[Clock, Waiting]:
    clock = Clock()
    waiting = Waiting("small", "mlx", clock)
    waiting.observe(Started(id="x", model="small", backend="mlx"))
    return clock, waiting


def test_nothing_is_shown_for_half_a_second() -> None:
    clock, waiting = begin()
    clock.now += 0.2
    waiting.observe(Progress(id="x", processed=32, total=64))
    assert waiting.line() == ""
    clock.now += 0.3
    assert waiting.line().startswith("reading ")


def test_reading_shows_tokens_speed_time_left_and_cached_share() -> None:
    clock, waiting = begin()
    clock.now += 1.0
    waiting.observe(Progress(id="x", processed=600, total=1000, cached=500))
    line = waiting.line()
    assert "600/1,000 tokens · 100 tok/s · 4 s left · 50 % cached · Ctrl-C stops" in line
    assert line.startswith("reading █████████░░░░░░░ ")
    clock.now += 1.5
    assert "2 s left" in waiting.line(), "it counts down between two chunks"


def test_time_in_the_queue_does_not_slow_the_speed() -> None:
    clock, waiting = begin()
    waiting.observe(Status(id="x", phase="queued", position=2))
    clock.now += 9.0
    assert waiting.line() == "place 2 in the queue · 9 s · Ctrl-C stops"
    waiting.observe(Status(id="x", phase="queued", position=1))
    clock.now += 1.0
    waiting.observe(Progress(id="x", processed=100, total=1000))
    assert "100 tok/s" in waiting.line()


def test_loading_shows_at_once_and_adds_up_ranks() -> None:
    clock, waiting = begin()
    waiting.observe(Status(id="x", phase="loading"))
    assert waiting.line() == "loading small · 0 s · Ctrl-C stops"
    waiting.observe(Status(id="x", phase="loading", done=2, total=8, rank=0))
    waiting.observe(Status(id="x", phase="loading", done=6, total=8, rank=1))
    clock.now += 61
    assert waiting.line() == "loading small · ████████░░░░░░░░ · 1 min 1 s · Ctrl-C stops"


def test_a_silent_backend_shows_how_long() -> None:
    clock, waiting = begin()
    waiting.observe(Status(id="x", phase="loading"))
    waiting.loaded()
    clock.now += 90
    assert waiting.line() == "waiting for mlx · 1 min 30 s · Ctrl-C stops"


def test_a_backends_own_note_and_a_cancel() -> None:
    clock, waiting = begin()
    clock.now += 1
    waiting.observe(Status(id="x", phase="queued", position=3, text="the server is busy"))
    assert waiting.line() == "place 3 in the queue · 1 s · the server is busy · Ctrl-C stops"
    waiting.stopping = True
    assert waiting.line() == "stopping…"
