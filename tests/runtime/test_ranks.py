"""Several ranks: one log, one moment of every cancel, and the culprit's name when one is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from exocli import CancelToken, Event, Progress, Request
from exocli.errors import EngineFailed, Unavailable
from exocli.runtime import group, watchdog

from tests.runtime.conftest import Make
from tests.support.runtime import children, end, is_progress, is_text, reply, text, wait_gone


@pytest.mark.parametrize("ranks", [2, 3])
async def test_ranks_that_agree_answer_cancel_and_go_on(make: Make, tmp_path: Path, ranks: int) -> None:
    session = make(ranks=ranks, ring=str(tmp_path))
    await session.load()
    assert len(set(session.pids)) == ranks
    assert text(await reply(session, "a b", max_tokens=3)) == "a b a "
    for at in (is_progress, is_text, None):
        token = CancelToken()
        if at is None:
            asyncio.get_running_loop().call_later(0.01, token.cancel)
        last = end(await reply(session, "x y z forever", at=at, token=token))
        assert last.reason == "cancelled" and last.cancel is not None
        # After ten milliseconds it may not have begun.
        assert last.cancel.ranks in ((0, ranks) if at is None else (ranks,)) and not last.cancel.killed
    both = await asyncio.gather(*(reply(session, w, max_tokens=4) for w in ("p q", "r s t")))
    assert [text(events) for events in both] == ["p q p q ", "r s t r "]
    assert session.restarts == 0


async def test_random_cancels_on_two_ranks(make: Make, tmp_path: Path) -> None:
    session = make(ranks=2, ring=str(tmp_path))
    await session.load()

    async def one(number: int) -> str:
        token = CancelToken()
        asyncio.get_running_loop().call_later((number * 7919 % 40) / 1000, token.cancel)
        return end(await reply(session, f"n{number} b", token=token, max_tokens=4)).reason

    reasons = [
        r for start in range(0, 60, 4) for r in await asyncio.gather(*map(one, range(start, start + 4)))
    ]
    assert len(reasons) == 60 and set(reasons) <= {"length", "cancelled"}
    assert session.restarts == 0 and session._loader.group is not None and not session._loader.group.live


async def test_the_first_rank_does_not_run_ahead_of_a_slow_last_one(make: Make, tmp_path: Path) -> None:
    """Without the bound rank 0 would be ~9 steps ahead for each of the slow one's, and the cancel late."""
    session = make(ranks=2, ring=str(tmp_path), slow_rank=1)
    prompt = "w " * 400
    last = end(await reply(session, prompt, at=lambda e: isinstance(e, Progress) and e.processed == 30))
    assert last.cancel is not None and last.cancel.processed < 40
    assert last.cancel.latency_ms < 1000


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_rank_is_named_and_the_ring_comes_back(
    make: Make, tmp_path: Path, victim: int
) -> None:
    session = make(ranks=2, ring=str(tmp_path))
    at = 0.0

    def kill(event: Event) -> bool:
        nonlocal at
        if is_text(event) and not at:
            at = time.monotonic()
            os.kill(session.pids[victim], signal.SIGKILL)
        return False

    last = end(await reply(session, "x forever", at=kill))
    assert time.monotonic() - at < 2
    assert last.error is not None and last.error["code"] == "worker_died"
    assert last.error["details"]["rank"] == victim
    assert last.error["message"].startswith(f"Rank {victim} on this machine of test-step-worker was killed")
    assert text(await reply(session, "a", max_tokens=1)) == "a " and session.restarts == 1


async def test_a_stopped_rank_is_named_and_the_ring_comes_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "BEAT_LIMIT", 1.2)
    session = make(ranks=2)
    stopped: list[int] = []

    def stop(event: Event) -> bool:
        if is_text(event) and not stopped:
            stopped.extend(session.pids)
            os.kill(session.pids[1], signal.SIGSTOP)
        return False

    last = end(await reply(session, "x forever", at=stop))
    assert last.error is not None and last.error["code"] == "stalled"
    assert last.error["message"] == "Rank 1 on this machine of test-step-worker gives no sign of life."
    assert all([await asyncio.to_thread(wait_gone, pid) for pid in stopped])
    assert text(await reply(session, "a", max_tokens=1)) == "a "


async def test_a_first_rank_that_was_stopped_while_idle_is_not_missed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not prepare the next request: a fresh ring does."""
    monkeypatch.setattr(watchdog, "BEAT_LIMIT", 1.2)
    session = make(ranks=2)
    await session.load()
    old = session.pids
    os.kill(old[0], signal.SIGSTOP)
    start = time.monotonic()
    assert text(await reply(session, "a", max_tokens=1)) == "a "
    assert time.monotonic() - start < 8 and session.restarts == 1
    assert all([await asyncio.to_thread(wait_gone, pid) for pid in old])


async def test_a_stopped_rank_and_a_cancel_end_by_the_deadline(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "CANCEL_DEADLINE", 0.3)
    session = make(ranks=2, ring=str(tmp_path))
    start = 0.0

    def stop(event: Event) -> bool:
        nonlocal start
        if is_text(event) and not start:
            start = time.monotonic()
            os.kill(session.pids[1], signal.SIGSTOP)
            return True
        return False

    last = end(await reply(session, "x forever", at=stop))
    assert last.reason == "cancelled" and last.cancel is not None and last.cancel.killed
    assert last.cancel.kept_tokens == 0 and time.monotonic() - start < 3


async def test_ranks_that_beat_but_make_no_step_are_stalled(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "TICK", 0.05)
    last = end(await reply(make(ranks=2, stall_timeout=0.8), "a hang"))
    assert last.error is not None and last.error["code"] == "stalled"
    assert last.error["message"].startswith("No rank of test-step-worker has finished a step for")


async def test_with_the_timeout_off_nobody_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "BEAT_LIMIT", 0.1)
    monkeypatch.setattr(group, "TICK", 0.02)
    events = await reply(make(ranks=2, stall_timeout=0), "a " * 100, max_tokens=100)
    assert end(events).reason == "length"


async def test_a_rank_that_left_owes_no_sign_of_life(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is done with the reply and silent; rank 1 goes on for longer than a beat may be late."""
    monkeypatch.setattr(watchdog, "BEAT_LIMIT", 1.6)
    session = make(ranks=2, late_rank=1)
    stream = session.stream(Request(prompt="a b", id="late", max_tokens=2))
    async for event in stream:
        if is_text(event):
            break
    rest = asyncio.create_task(anext_all(stream))
    while session._loader.group is None or session._loader.group.live["late"].finished is None:
        await asyncio.sleep(0.01)
    done, _ = await asyncio.wait([rest], timeout=2.5)
    assert not done and session.loaded, "a rank without work was taken for a dead one"
    os.kill(session.pids[1], signal.SIGKILL)
    last = end(await rest)
    assert last.reason == "length", "the answer was whole before the rank was lost"


async def anext_all(stream: object) -> list[Event]:
    return [event async for event in stream]  # type: ignore[attr-defined]


async def test_a_rank_that_cannot_start_ends_the_others(make: Make) -> None:
    before = children()
    session = make(ranks=3, missing_rank=1)
    with pytest.raises(Unavailable, match="cannot be started: No such file"):
        await session.load()
    assert children() == before


async def test_a_launch_that_exits_ends_no_program(make: Make) -> None:
    session = make(quit_launch=True)
    with pytest.raises(EngineFailed, match="SystemExit: 3"):
        await session.load()
    last = end(await reply(session, "a"))
    assert last.error is not None and last.error["code"] == "engine_failed"


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.05])
async def test_a_load_that_is_cancelled_half_way_leaves_no_rank(make: Make, delay: float) -> None:
    before = children()
    session = make(ranks=3, hang_open=True)
    token = CancelToken()
    asyncio.get_running_loop().call_later(delay, token.cancel)
    last = end(await reply(session, "a", token=token))
    assert last.reason == "cancelled"
    assert children() == before


async def test_one_rank_that_fails_at_once_leaves_no_other(make: Make) -> None:
    before = children()
    session = make(ranks=3, exit_open=4)
    last = end(await reply(session, "a"))
    assert last.error is not None and "ended with status 4" in last.error["message"]
    assert children() == before
