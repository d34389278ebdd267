"""The cancel token: once, from any thread, and nobody who listens is forgotten."""

from __future__ import annotations

import threading
import time

import pytest
from exocli import Cancelled, CancelToken


def test_the_first_reason_wins() -> None:
    token = CancelToken()
    assert not token.cancelled and token.reason is None and token.asked_at is None
    token.raise_if_cancelled()
    before = time.monotonic()
    assert token.cancel("first") and not token.cancel("second")
    assert token.cancelled and token.reason == "first"
    assert token.asked_at is not None and before <= token.asked_at <= time.monotonic()
    with pytest.raises(Cancelled, match="first"):
        token.raise_if_cancelled()


def test_callbacks_run_once_early_or_late_and_can_be_taken_back() -> None:
    token = CancelToken()
    seen: list[str] = []
    token.on_cancel(lambda: seen.append("early"))
    forget = token.on_cancel(lambda: seen.append("forgotten"))
    forget()
    forget()
    token.cancel()
    token.cancel()
    late = token.on_cancel(lambda: seen.append("late"))
    late()
    assert seen == ["early", "late"]


def test_a_callback_may_use_the_token() -> None:
    token = CancelToken()
    seen: list[str] = []
    token.on_cancel(lambda: token.on_cancel(lambda: seen.append(str(token.cancel()))))
    token.cancel()
    assert seen == ["False"]


def test_one_callback_that_raises_does_not_keep_it_from_the_others() -> None:
    token = CancelToken()
    seen: list[int] = []
    token.on_cancel(lambda: seen.append(1))
    token.on_cancel(lambda: 1 // 0)
    token.on_cancel(lambda: seen.append(2))
    with pytest.raises(ZeroDivisionError):
        token.cancel()
    assert seen == [1, 2] and token.cancelled and not token.cancel()


def test_many_threads_one_first_and_every_callback_once() -> None:
    for _ in range(50):
        token = CancelToken()
        start = threading.Barrier(8)
        firsts: list[bool] = []
        called: list[int] = []

        def work(n: int, token: CancelToken = token, start: threading.Barrier = start) -> None:
            start.wait()
            if n % 2:
                token.on_cancel(lambda: called.append(n))  # noqa: B023
            else:
                firsts.append(token.cancel(str(n)))  # noqa: B023

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert firsts.count(True) == 1 and sorted(called) == [1, 3, 5, 7]
