"""Cancel keeps the work: resume, equality with the uncancelled run, survivors untouched."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from exocli import CancelToken, Event, Message, Progress, Request, Text
from exocli.runtime.session import Session

from tests.real.asking import DOCUMENT, answer, ask

CAPITAL = "What is the capital of France?"
STORY = "Write a long story about a dog."


def after(tokens: int) -> object:
    def at(event: Event) -> bool:
        return isinstance(event, Progress) and event.processed >= tokens

    return at


async def cut_in_prefill(session: Session, request: Request) -> str:
    """B18: cancelled half-way and sent again it goes on from there; → what it then says."""
    got = await answer(session, request, at=after(130))  # type: ignore[arg-type]
    receipt = got.finished.cancel
    assert got.finished.reason == "cancelled"
    assert receipt is not None
    assert receipt.phase == "prefill"
    assert 130 <= receipt.processed < receipt.total
    assert receipt.kept_tokens == receipt.processed
    assert receipt.latency_ms > 0
    assert (receipt.ranks, receipt.confirmed, receipt.killed) == (1, True, False)
    again = await answer(session, replace(request, id="again"))
    assert again.cached >= receipt.kept_tokens
    assert again.progress[0].processed == again.cached
    return again.text


async def cut_in_decode(session: Session) -> str:
    """Cancelled within a token; → the partial text."""
    pieces: list[str] = []

    def third(event: Event) -> bool:
        if isinstance(event, Text):
            pieces.append(event.text)
        return len(pieces) >= 3

    got = await answer(session, ask(STORY, max_tokens=200), at=third)
    receipt = got.finished.cancel
    assert receipt is not None
    assert receipt.phase == "decode"
    assert got.finished.usage.completion_tokens <= 6
    assert got.text == "".join(got.pieces)
    return got.text


async def kill_one_that_reads_and_one_that_writes(session: Session) -> None:
    """kill -9: a clear error for both."""
    (pid,) = session.pids
    writes = asyncio.Event()

    def writing(event: Event) -> bool:
        if isinstance(event, Text):
            writes.set()
        return False

    def kill(event: Event) -> bool:
        if isinstance(event, Progress) and event.processed < event.total:
            os.kill(pid, signal.SIGKILL)
        return False

    other = asyncio.ensure_future(answer(session, ask(STORY, max_tokens=200), at=writing))
    await writes.wait()
    for got in (await answer(session, ask("Killed. " + DOCUMENT), at=kill), await other):
        assert got.finished.reason == "error"
        assert got.finished.error is not None
        assert got.finished.error["code"] == "worker_died"
        assert "SIGKILL" in got.finished.error["message"]
    assert pid not in session.pids


async def test_what_a_cancel_kept_equals_a_fresh_worker(session: Session) -> None:
    """B16, B18: what follows on a cancel is what a worker says that never heard of it: here the one that
    comes after a kill -9."""
    request = ask("First. " + DOCUMENT + " What is this list about?")
    resumed = await cut_in_prefill(session, request)
    follow = ask(STORY, await cut_in_decode(session), CAPITAL)
    warm = await answer(session, follow)
    assert warm.cached > 0
    await kill_one_that_reads_and_one_that_writes(session)
    for once, text in ((request, resumed), (follow, warm.text)):
        fresh = await answer(session, replace(once, id=f"fresh {once.id}"))
        assert fresh.cached < 40, "no more than how every chat begins"
        assert fresh.text == text
    assert "Paris" in (await answer(session, ask(CAPITAL))).text


async def test_cancel_twice_in_one_prefill_goes_on_each_time(session: Session) -> None:
    request = ask("Second. " + DOCUMENT + " Name one value.")
    kept = 0
    for number, tokens in enumerate((60, 120)):
        got = await answer(session, replace(request, id=f"twice{number}"), at=after(tokens))  # type: ignore[arg-type]
        assert got.finished.cancel is not None
        assert got.cached >= kept
        kept = got.finished.cancel.kept_tokens or 0
        assert kept >= tokens


async def test_a_survivor_is_not_touched_by_a_cancel_beside_it(session: Session) -> None:
    survivor = ask("Count from one to twenty in words.", max_tokens=14)
    alone = await answer(session, survivor)
    cancel = CancelToken()

    def fifth(event: Event) -> bool:
        if isinstance(event, Text):
            cancel.cancel()
        return False

    beside = answer(session, ask("Third. " + DOCUMENT), cancel=cancel)
    got, other = await asyncio.gather(answer(session, replace(survivor, id="survivor"), at=fifth), beside)
    assert other.finished.reason == "cancelled"
    assert got.text == alone.text


async def one_cancel(session: Session, number: int, dice: random.Random) -> None:
    cancel = CancelToken()
    timer = asyncio.get_running_loop().call_later(dice.uniform(0, 0.6), cancel.cancel)
    request = ask(f"{number}. {DOCUMENT[: dice.randrange(20, 600)]} Go on.", max_tokens=12)
    got = await answer(session, request, cancel=cancel)
    timer.cancel()
    assert got.finished.reason in ("cancelled", "length", "stop")
    if got.finished.cancel is not None:
        assert not got.finished.cancel.killed


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


@pytest.mark.soak
@pytest.mark.parametrize("count", [200])
async def test_random_cancels_leave_one_worker_alive_and_its_memory_flat(
    session: Session, count: int
) -> None:
    dice = random.Random(count)
    await answer(session, ask(CAPITAL))
    (pid,) = session.pids
    for number in range(min(10, count)):
        await one_cancel(session, number, dice)
    before = rss_mb(pid)
    for number in range(count - 10):
        await one_cancel(session, number + 10, dice)
    assert session.pids == [pid]
    assert not session.flights
    assert rss_mb(pid) < before * 1.10
    assert "Paris" in (await answer(session, ask(CAPITAL, id="last"))).text


@pytest.mark.soak
async def test_a_worker_killed_while_idle_is_not_missed(session: Session) -> None:
    await session.load()
    (pid,) = session.pids
    os.kill(pid, signal.SIGKILL)
    assert "Paris" in (await answer(session, ask(CAPITAL))).text
    assert session.pids != [pid]


async def test_cancel_of_a_queued_request_never_reaches_the_engine(session: Session) -> None:
    """B07"""
    running = [CancelToken() for _ in range(session.capabilities.max_concurrency)]
    tasks = [
        asyncio.ensure_future(answer(session, ask(f"{i}: {DOCUMENT}"), cancel=cancel))
        for i, cancel in enumerate(running)
    ]
    queued = CancelToken()
    request = Request(messages=(Message(role="user", content=DOCUMENT),), id="queued")
    waiting = asyncio.ensure_future(answer(session, request, cancel=queued))
    while session.queued == 0:
        await asyncio.sleep(0)
    queued.cancel()
    got = await waiting
    for cancel in running:
        cancel.cancel()
    await asyncio.gather(*tasks)
    assert got.finished.cancel is not None
    assert got.finished.cancel.phase == "queued"
    assert got.progress == []
