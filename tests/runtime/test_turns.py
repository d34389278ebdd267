"""The queue before an engine: in order for one owner, in turns for several."""

from __future__ import annotations

import asyncio

from exocli import CancelToken, Request, Status
from exocli.runtime.flight import Flight
from exocli.runtime.turns import Turns


def flight(name: str) -> Flight:
    """Owned by the name's first letter."""
    return Flight(request=Request(id=name), cancel=CancelToken(), owner=name[0])


async def order_of(names: list[str], cancelled: tuple[str, ...] = ()) -> list[str]:
    """The order in which those of `names` are let in, one at a time, all having come at once."""
    turns = Turns(lambda: 1)
    first = flight("z0")
    assert await turns.acquire(first) is False
    flights = [flight(name) for name in names]
    done: list[str] = []

    async def one(waiting: Flight) -> None:
        if await turns.acquire(waiting):
            done.append(waiting.id)
            await asyncio.sleep(0)
            turns.release(waiting)

    tasks = [asyncio.create_task(one(waiting)) for waiting in flights]
    await asyncio.sleep(0)
    for waiting in flights:
        if waiting.id in cancelled:
            waiting.cancel.cancel()
    while turns.waiting > len(names) - len(cancelled):
        await asyncio.sleep(0)
    turns.release(first)
    await asyncio.gather(*tasks)
    assert (turns.running, turns.waiting) == (0, 0)
    return done


async def test_one_owner_is_served_in_order_of_arrival():
    assert await order_of(["a1", "a2", "a3", "a4"]) == ["a1", "a2", "a3", "a4"]


async def test_several_owners_take_turns():
    assert await order_of(["a1", "a2", "a3", "b1", "c1", "b2"]) == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_who_leaves_is_passed_over():
    assert await order_of(["a1", "a2", "b1", "a3"], cancelled=("a1", "b1")) == ["a2", "a3"]


async def test_an_owner_who_comes_late_is_not_made_to_catch_up_nor_favoured():
    turns = Turns(lambda: 1)
    running = [flight("z0")]
    await turns.acquire(running[0])
    order: list[str] = []

    async def one(name: str) -> None:
        running.append(flight(name))
        mine = running[-1]
        await turns.acquire(mine)
        order.append(name)
        running[:] = [mine]

    tasks = [asyncio.create_task(one(name)) for name in ("a1", "a2", "a3")]
    await asyncio.sleep(0)
    for _ in range(2):
        turns.release(running[0])
        await asyncio.sleep(0.01)
    tasks += [asyncio.create_task(one(name)) for name in ("b1", "b2")]
    await asyncio.sleep(0)
    while len(order) < 5:
        turns.release(running[0])
        await asyncio.sleep(0.01)
    await asyncio.gather(*tasks)
    assert order == ["a1", "a2", "a3", "b1", "b2"]


async def test_owners_who_wait_no_more_are_forgotten_while_others_wait():
    turns = Turns(lambda: 1)
    running = flight("z0")
    await turns.acquire(running)
    waiting: list[tuple[Flight, asyncio.Task[bool | None]]] = []
    for owner in "abcdefghij":
        one = flight(owner)
        waiting.append((one, asyncio.create_task(turns.acquire(one))))
        await asyncio.sleep(0)
        if len(waiting) > 1:  # so that the queue is never empty
            turns.release(running)
            running, task = waiting.pop(0)
            await task
    assert turns.waiting == 1 and len(turns._last) <= 1
    waiting[0][0].cancel.cancel()
    assert await waiting[0][1] is None


async def test_everybody_learns_a_new_position():
    turns = Turns(lambda: 1)
    await turns.acquire(flight("z0"))
    flights = [flight(name) for name in ("a1", "a2", "b1")]
    tasks = [asyncio.create_task(turns.acquire(waiting)) for waiting in flights]
    await asyncio.sleep(0)
    told = {f.id: [e.position for e in queued(f)] for f in flights}
    assert told == {"a1": [1], "a2": [2, 3], "b1": [2]}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def queued(waiting: Flight) -> list[Status]:
    found = []
    while not waiting.queue.empty():
        event = waiting.queue.get_nowait()
        assert isinstance(event, Status)
        found.append(event)
    return found
