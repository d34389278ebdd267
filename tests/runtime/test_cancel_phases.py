"""A cancel in every phase ends in one honest receipt, whatever it races with."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest
from exocli import CancelToken, Event, Progress, Request, Status
from exocli.runtime import group, loop, prepares, watchdog

from tests.runtime.conftest import Make
from tests.support.runtime import end, is_text, reply, text, wait_gone


def is_loading(event: Event) -> bool:
    return isinstance(event, Status) and event.phase == "loading" and event.done is not None


@pytest.mark.parametrize("place", ["worker", "inline"])
async def test_in_prefill_the_receipt_counts_what_was_kept(make: Make, place: str) -> None:
    session = make(place)
    prompt = " ".join(f"w{n}" for n in range(100))
    last = end(await reply(session, prompt, at=lambda e: isinstance(e, Progress) and e.processed == 5))
    assert last.reason == "cancelled" and last.cancel is not None and last.error is None
    assert last.cancel.phase == "prefill" and last.cancel.total == 100
    assert 5 <= last.cancel.processed < 100 and last.cancel.kept_tokens == last.cancel.processed
    assert (last.cancel.ranks, last.cancel.confirmed, last.cancel.killed) == (1, True, False)
    assert 0 < last.cancel.latency_ms < 1000
    again = await reply(session, prompt, max_tokens=1)  # resumes where the cancel stopped
    steps = [e.processed for e in again if isinstance(e, Progress)]
    assert steps[0] == last.cancel.processed + 1 and text(again) == "w0 "


async def test_while_the_worker_loads_the_cancel_ends_it_at_once(make: Make) -> None:
    session = make(hang_open=True)
    start = time.monotonic()
    last = end(await reply(session, "a", at=is_loading))
    assert last.cancel is not None and last.cancel.phase == "loading"
    assert (last.cancel.processed, last.cancel.kept_tokens, last.cancel.ranks) == (0, 0, 0)
    assert last.cancel.latency_ms < 1000 and time.monotonic() - start < 3
    assert not session.loaded and not session.loading


async def test_one_waiter_that_leaves_does_not_end_the_load_of_the_other(make: Make) -> None:
    session = make()
    one, two = await asyncio.gather(reply(session, "a", at=is_loading), reply(session, "b", max_tokens=1))
    assert end(one).reason == "cancelled" and text(two) == "b "


async def test_a_request_right_after_a_cancelled_load_gets_a_load_of_its_own(make: Make) -> None:
    session = make(hang_open=True)
    token, loading = CancelToken(), asyncio.Event()

    async def first() -> list[Event]:
        events = []
        async for event in session.stream(Request(prompt="a"), token):
            events.append(event)
            if is_loading(event):
                loading.set()
        return events

    task = asyncio.create_task(first())
    await loading.wait()
    token.cancel()
    while session.loading:
        await asyncio.sleep(0)
    last = end(await reply(session, "b", at=is_loading))  # while the first worker is still being ended
    assert end(await task).reason == "cancelled"
    assert last.cancel is not None and last.cancel.phase == "loading"


async def test_kill_while_loading_is_an_error_for_those_who_wait(make: Make) -> None:
    session = make(hang_open=True)
    loads = asyncio.Event()
    load = asyncio.create_task(session.load(lambda *_: loads.set()))
    task = asyncio.create_task(reply(session, "a"))
    await loads.wait()
    await session.kill()
    last = end(await task)
    assert last.error is not None and last.error["code"] == "worker_died"
    with pytest.raises(Exception, match="ended while it was loading"):
        await load


async def test_before_prepare_answers_nothing_reaches_the_engine(make: Make) -> None:
    session = make("inline")
    await session.load()
    token = CancelToken()
    token.cancel()
    last = end(await reply(session, "a", token=token))
    assert last.cancel is not None and last.cancel.phase == "queued" and last.cancel.ranks == 0


async def test_while_prepare_hangs_the_cancel_returns(make: Make) -> None:
    session = make()
    await session.load()
    token = CancelToken()
    task = asyncio.create_task(reply(session, "prepare-hang", token=token))
    while session._loader.group is None or not session._loader.group._prepares:
        await asyncio.sleep(0.001)
    token.cancel()
    assert end(await task).reason == "cancelled"


async def test_a_prepare_that_hangs_fails_in_time_and_holds_nobody_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "PREPARE_ALONE", 0.05)
    session = make("inline")
    await session.load()
    token = CancelToken()
    hanging = asyncio.create_task(reply(session, "prepare-hang", token=token))
    while session._loader.group is None or not session._loader.group._prepares:
        await asyncio.sleep(0.001)
    assert end(await reply(session, "a", max_tokens=1)).reason == "length"
    assert not hanging.done()
    monkeypatch.setattr(prepares, "PREPARE_LIMIT", 0.05)
    last = end(await reply(session, "prepare-hang"))
    assert last.error is not None and last.error["code"] == "engine_failed"
    assert "has not read the request within 0.05 s" in last.error["message"]
    token.cancel()
    assert end(await hanging).reason == "cancelled"


async def test_an_id_that_is_used_again_has_a_prepare_of_its_own(make: Make) -> None:
    session = make("inline")
    await session.load()
    token = CancelToken()
    first = asyncio.create_task(reply(session, "prepare-wait old", token=token, id="same"))
    while session._loader.group is None or not session._loader.group._prepares:
        await asyncio.sleep(0.001)
    token.cancel()
    assert end(await first).reason == "cancelled"
    assert text(await reply(session, "new", id="same", max_tokens=1)) == "new "


async def test_a_late_cancel_is_not_that_of_the_ids_next_request(make: Make) -> None:
    session = make("inline")
    late = CancelToken()
    await reply(session, "a", token=late, id="same", max_tokens=1)

    def cancels_the_first(event: Event) -> bool:
        if is_text(event):
            late.cancel()
        return False

    last = end(await reply(session, "a b c", at=cancels_the_first, id="same", max_tokens=30))
    assert late.cancelled and last.reason == "length"


async def test_in_the_queue(make: Make) -> None:
    session = make("inline", concurrency=1)
    holder = CancelToken()
    running = asyncio.create_task(reply(session, "x forever", token=holder))
    while not session._turns.running:
        await asyncio.sleep(0.001)
    last = end(await reply(session, "a b", at=lambda e: isinstance(e, Status) and e.phase == "queued"))
    assert last.cancel is not None and last.cancel.phase == "queued" and last.cancel.total == 2
    holder.cancel()
    await running


async def test_of_a_finished_request_it_is_a_no_op(make: Make) -> None:
    session = make("inline")
    token = CancelToken()
    assert end(await reply(session, "a", token=token, max_tokens=1)).reason == "length"
    token.cancel()
    assert session._loader.group is not None
    session._loader.group._append(do="cancel", id="no such request")
    assert text(await reply(session, "b", max_tokens=1)) == "b "


async def test_from_another_thread(make: Make) -> None:
    session = make()
    token = CancelToken()
    wrote = threading.Event()
    other = threading.Thread(target=lambda: wrote.wait(60) and token.cancel())
    other.start()
    events = []
    async for event in session.stream(Request(prompt="x forever"), token):
        events.append(event)
        if is_text(event):
            wrote.set()
    other.join()
    assert end(events).reason == "cancelled"


async def test_an_engine_that_ignores_it_is_killed_at_twice_the_deadline(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "CANCEL_DEADLINE", 0.3)
    monkeypatch.setattr(group, "TICK", 0.05)
    session = make(ignore_cancel=True)
    await session.load()
    bystander = asyncio.create_task(reply(session, "b forever"))
    pids = session.pids
    last = end(await reply(session, "x forever", at=is_text))
    assert last.reason == "cancelled" and last.cancel is not None
    assert last.cancel.killed and last.cancel.kept_tokens == 0 and last.cancel.phase == "decode"
    assert 600 <= last.cancel.latency_ms < 2500
    other = end(await bystander)
    assert other.error is not None and other.error["code"] == "stalled"
    assert all([await asyncio.to_thread(wait_gone, pid) for pid in pids])
    assert text(await reply(session, "a", max_tokens=1)) == "a " and session.restarts == 1


async def test_who_is_waited_for_is_known_meanwhile(make: Make) -> None:
    session = make(ignore_cancel=True)
    token = CancelToken()
    stream = session.stream(Request(prompt="x forever", id="abc"), token)
    async for event in stream:
        if is_text(event):
            break
    token.cancel()
    assert session.waiting_for("abc") == "The worker" and session.waiting_for("nobody") is None
    assert session.cancel_deadline >= 2
    await session.kill()
    last = end([e async for e in stream])
    assert last.cancel is not None and last.cancel.killed


async def test_kill_fails_what_was_not_cancelled(make: Make) -> None:
    session = make()
    stream = session.stream(Request(prompt="x forever"))
    async for event in stream:
        if is_text(event):
            break
    await session.kill()
    last = end([e async for e in stream])
    assert last.error is not None and "ended on request" in last.error["message"]


# ------------------------------------------------------------------------------------------- races


async def race(make: Make, place: str, rounds: int, seed: int) -> None:
    """Cancels at random moments of short replies: one Finished each, and the engine goes on (B09)."""
    session = make(place)
    await session.load()
    rng = random.Random(seed)
    reasons: list[str] = []

    async def one(number: int) -> None:
        token = CancelToken()
        words = rng.randrange(1, 6)
        moment = rng.randrange(0, 12)

        def at(event: Event) -> bool:
            nonlocal moment
            moment -= 1
            return moment == 0

        delay = rng.choice([None, 0.0, rng.random() * 0.03])
        if delay is not None:
            asyncio.get_running_loop().call_later(delay, token.cancel)
        events = await reply(session, f"n{number} " * words, token=token, at=at, max_tokens=3)
        last = end(events)
        reasons.append(last.reason)
        assert (last.cancel is not None) == (last.reason == "cancelled")
        if last.reason == "length":
            assert text(events) == f"n{number} " * 3

    for start in range(0, rounds, 5):
        await asyncio.gather(*(one(n) for n in range(start, start + 5)))
    assert set(reasons) == {"length", "cancelled"} and len(reasons) == rounds
    assert session.restarts == 0 and not session.flights and session._turns.running == 0
    assert session._loader.group is not None and not session._loader.group.live
    assert text(await reply(session, "a", max_tokens=1)) == "a "


@pytest.mark.parametrize("place", ["worker", "inline"])
async def test_random_races_of_cancel_and_end(make: Make, place: str) -> None:
    await race(make, place, 200, seed=7)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
async def test_many_random_races(make: Make, seed: int) -> None:
    await race(make, "worker", 2000, seed)


async def test_a_cancel_in_the_moment_of_the_turn_passes_the_turn_on(make: Make) -> None:
    """The slot is free and the cancel comes before the waiter has woken up: nobody may lose the slot."""
    session = make("inline", concurrency=1)
    await session.load()
    rng = random.Random(3)
    for _ in range(40):
        holder, waiter = CancelToken(), CancelToken()
        first = asyncio.create_task(reply(session, "x forever", token=holder))
        while session._turns.running == 0:
            await asyncio.sleep(0)
        second = asyncio.create_task(reply(session, "y forever", token=waiter))
        third = asyncio.create_task(reply(session, "z", max_tokens=1))
        while session.queued < 2:
            await asyncio.sleep(0)
        holder.cancel()
        for _ in range(rng.randrange(0, 400)):
            await asyncio.sleep(0)
        waiter.cancel()
        assert {end(await first).reason, end(await second).reason} == {"cancelled"}
        assert text(await third) == "z "
    assert session._turns.running == 0 and session.queued == 0
