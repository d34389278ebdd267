"""Ranks that die, stop, raise or never come: an error in bounded time that names the rank, nothing left
behind, and the next request starts a fresh ring. Real processes, each fault in each phase."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from exocli import CancelToken, Event, Finished, Progress, Text
from exocli.errors import ExoError
from exocli.runtime.session import Session

from tests.exo_ring.conftest import Make
from tests.exo_ring.faulty import MARK
from tests.support.runtime import ROOT, alive, end, reply, text, wait_gone

LONG = "the quick brown fox jumps over the lazy dog. " * 60


async def run_until(session: Session, phase: str, strike: object) -> tuple[list[Event], float]:
    """A long request; `strike()` once it is in that phase. → its events, and the seconds since."""
    struck = 0.0

    def at(event: Event) -> bool:
        nonlocal struck
        wanted = Text if phase == "decode" else Progress
        if isinstance(event, wanted) and not struck:
            struck = time.monotonic()
            strike()  # type: ignore[operator]
        return False

    events = await reply(session, LONG, task="complete", max_tokens=1000, at=at)
    return events, time.monotonic() - struck


async def works_again(session: Session, old: list[int]) -> None:
    """None of the old processes is left, and a fresh ring answers."""
    assert all(wait_gone(pid) for pid in old)
    events = await reply(session, "hello", task="complete", max_tokens=4)
    assert end(events).reason == "length" and text(events)
    assert not {*old} & {*session.pids} and session.restarts == 1


def failure(events: list[Event]) -> tuple[str, str]:
    last = end(events)
    assert last.reason == "error" and last.error is not None, last
    return last.error["code"], last.error["message"]


CASES = [("prefill", 1), ("decode", 0)]
MORE = [("prefill", 0), ("decode", 1)]


@pytest.mark.parametrize(
    ("phase", "rank"), [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE)]
)
async def test_a_rank_that_is_killed(make: Make, phase: str, rank: int) -> None:
    session = make(chunk=32)
    await session.load()
    old = session.pids
    events, took = await run_until(session, phase, lambda: os.kill(old[rank], signal.SIGKILL))
    code, message = failure(events)
    assert code == "worker_died" and message.startswith(f"Rank {rank} on this machine of ring was killed")
    assert took < 2
    await works_again(session, old)


async def test_a_rank_that_is_killed_while_nothing_runs(make: Make) -> None:
    session = make()
    await session.load()
    old = session.pids
    os.kill(old[1], signal.SIGKILL)
    assert await asyncio.to_thread(wait_gone, old[0], 5.0), "the rest of the ring must not stay"
    await works_again(session, old)


@pytest.mark.parametrize(
    ("phase", "rank"),
    [("decode", 1), *(pytest.param(*c, marks=pytest.mark.soak) for c in [("prefill", 0), ("prefill", 1)])],
)
async def test_a_rank_that_is_stopped(make: Make, phase: str, rank: int) -> None:
    session = make(chunk=32)
    await session.load()
    old = session.pids
    events, took = await run_until(session, phase, lambda: os.kill(old[rank], signal.SIGSTOP))
    code, message = failure(events)
    assert code == "stalled" and message == f"Rank {rank} on this machine of ring gives no sign of life."
    assert took < 6
    await works_again(session, old)


async def test_a_cancel_returns_although_a_rank_is_stopped(make: Make) -> None:
    session = make(chunk=32, stall_timeout=0)
    await session.load()
    old = session.pids
    token = CancelToken()

    def strike() -> None:
        os.kill(old[0], signal.SIGSTOP)
        token.cancel()

    events: list[Event] = []
    struck = 0.0
    from exocli import Request

    async for event in session.stream(Request(prompt=LONG, task="complete", max_tokens=1000), token):
        events.append(event)
        if isinstance(event, Text) and not struck:
            struck = time.monotonic()
            strike()
    last = events[-1]
    assert isinstance(last, Finished) and last.reason == "cancelled" and last.cancel is not None
    assert last.cancel.killed and last.cancel.kept_tokens == 0
    assert time.monotonic() - struck < 8
    await works_again(session, old)


@pytest.mark.parametrize(
    ("phase", "rank"),
    [("decode", 1), *(pytest.param(*c, marks=pytest.mark.soak) for c in [("prefill", 0), ("decode", 0)])],
)
async def test_a_rank_that_raises(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, rank: int
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv(MARK, str(mark))
    session = make(opener="open_raising", chunk=32)
    await session.load()
    old = session.pids
    events, took = await run_until(session, phase, lambda: mark.write_text(str(rank)))
    code, message = failure(events)
    assert code == "engine_failed" and "a fault made by a test" in message
    assert took < 3
    await works_again(session, old)


async def test_a_rank_that_fails_while_it_opens(make: Make) -> None:
    session = make(opener="open_never", connect_timeout=3)
    start = time.monotonic()
    with pytest.raises(ExoError, match="MemoryError: a fault made by a test"):
        await session.load()
    assert time.monotonic() - start < 10


async def test_a_program_that_is_killed_leaves_no_rank(folder: Path, home: Path) -> None:
    """Its ranks see the end of their pipes, in the middle of the work too."""
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from exocli import Request\n"
        "from tests.exo_ring.conftest import open_session\n"
        "async def main():\n"
        f"    session = open_session(Path({str(folder)!r}), chunk=32)\n"
        "    async for event in session.stream(Request(prompt='x', task='complete', max_tokens=3000)):\n"
        "        if event.type == 'text':\n"
        "            print(*session.pids, flush=True)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pids = [int(pid) for pid in child.stdout.readline().split()]
        assert len(pids) == 2 and all(alive(pid) for pid in pids)
        child.kill()
        assert all(wait_gone(pid) for pid in pids)
