"""Admission by memory: a request starts when its tokens fit beside those that run, and waits its turn."""

from __future__ import annotations

import asyncio

import pytest
from exocli import CancelToken, Finished, Status
from exocli.runtime.session import Session
from exocli.types import Event

from tests.runtime.conftest import Make
from tests.support.runtime import end, reply, text

# "x forever" has two tokens of prompt and never ends by itself; it reserves 2 + max_tokens.


async def holding(session: Session, tokens: int) -> tuple[CancelToken, asyncio.Task[list[Event]]]:
    """A request that reserves so many tokens and runs until it is cancelled."""
    token = CancelToken()
    running = session._turns.running
    task = asyncio.create_task(reply(session, "x forever", token=token, max_tokens=tokens - 2))
    while session._turns.running == running:
        await asyncio.sleep(0.001)
    return token, task


def start(
    session: Session, name: str, tokens: int, token: CancelToken | None = None
) -> asyncio.Task[list[Event]]:
    """A request of one word of prompt that reserves so many tokens."""
    return asyncio.create_task(reply(session, name, token=token, max_tokens=tokens - 1))


async def queue_of(session: Session, length: int) -> None:
    while session.queued != length:
        await asyncio.sleep(0.001)


def places(events: list[Event]) -> list[tuple[int | None, str | None]]:
    return [(e.position, e.text) for e in events if isinstance(e, Status) and e.phase == "queued"]


async def test_what_does_not_fit_beside_those_that_run_waits_and_says_why(make: Make) -> None:
    session = make("inline", kv_tokens=100)
    first, running = await holding(session, 60)
    small = start(session, "a", 40)
    assert end(await small).reason == "length"  # 60 + 40 fit
    large = start(session, "b", 41)
    await queue_of(session, 1)
    first.cancel()
    events = await large
    assert text(events).startswith("b ") and end(events).reason == "length"
    assert places(events) == [(1, "waiting for memory")]
    assert end(await running).reason == "cancelled"


async def test_nobody_overtakes_a_large_one_that_waits(make: Make) -> None:
    session = make("inline", kv_tokens=100)
    one, running_one = await holding(session, 50)
    two, running_two = await holding(session, 30)
    tasks = []
    for name, tokens in {"large": 90, "small": 10, "tiny": 5}.items():
        tasks.append(start(session, name, tokens))
        await queue_of(session, len(tasks))
    one.cancel()
    await running_one
    assert session.queued == 3  # 30 run, 90 do not fit beside them, and 10 would
    two.cancel()
    large, small, tiny = await asyncio.gather(*tasks)
    assert [place for place, _ in places(tiny)] == sorted((p for p, _ in places(tiny)), reverse=True)
    assert {end(events).reason for events in (large, small, tiny)} == {"length"}
    assert end(await running_two).reason == "cancelled"


async def test_cancelled_while_it_waits_it_lets_those_behind_it_pass(make: Make) -> None:
    session = make("inline", kv_tokens=100)
    first, running = await holding(session, 60)
    token = CancelToken()
    large = start(session, "large", 90, token)
    await queue_of(session, 1)
    small = start(session, "small", 40)
    await queue_of(session, 2)
    token.cancel()
    finished = end(await large)
    assert finished.cancel is not None and (finished.cancel.phase, finished.cancel.ranks) == ("queued", 0)
    assert end(await small).reason == "length"  # while the first one still runs
    assert not running.done()
    first.cancel()
    await running


async def test_a_padded_batch_takes_its_longest_ones_room_for_each(make: Make) -> None:
    session = make("inline", kv_tokens=100, kv_padded=True)
    first, running = await holding(session, 40)
    assert end(await start(session, "a", 10)).reason == "length"  # 2 x 40
    second = start(session, "b", 60)  # 2 x 60
    await queue_of(session, 1)
    first.cancel()
    assert end(await second).reason == "length"
    await running


async def test_one_that_is_alone_always_starts(make: Make) -> None:
    """What can never run is the engine's to refuse: here nothing may wait for ever."""
    session = make("inline", kv_tokens=5)
    assert end(await start(session, "a", 9)).reason == "length"
    first, running = await holding(session, 50)
    waiting = start(session, "b", 3)
    await queue_of(session, 1)
    first.cancel()
    assert end(await waiting).reason == "length"
    await running


@pytest.mark.parametrize("padded", [False, True])
async def test_never_more_than_memory_holds_and_all_end(make: Make, padded: bool) -> None:
    session = make("inline", kv_tokens=64, kv_padded=padded)
    most = 0
    fits = session._fits

    def watched(needs: list[int]) -> bool:
        nonlocal most
        if allowed := fits(needs):
            most = max(most, len(needs) * max(needs) if padded else sum(needs))
        return allowed

    session._turns._fits = watched  # type: ignore[assignment]
    sizes = [5, 40, 12, 60, 3, 20, 33, 8, 50, 2, 17, 64]
    tokens = [CancelToken() for _ in sizes]
    tasks = [start(session, f"w{i}", size, tokens[i]) for i, size in enumerate(sizes)]
    for token in tokens[1::4]:
        token.cancel()
    ends: list[Finished] = [end(events) for events in await asyncio.gather(*tasks)]
    assert [one.reason for one in ends] == [
        "cancelled" if i % 4 == 1 else "length" for i in range(len(sizes))
    ]
    assert 0 < most <= 64
    assert session._turns.running == session.queued == 0
