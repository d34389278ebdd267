"""Ranks that die, stop, raise or never come: an error in bounded time that names the rank, nothing left
behind, and the next request starts a fresh ring. Real processes; one ring after the other, each broken by
the next test."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from exocli import CancelToken, Event, Progress, Status, Text
from exocli.errors import ExoError
from exocli.runtime.session import Session

from tests.exo_ring.conftest import open_session
from tests.exo_ring.faulty import MARK
from tests.support.runtime import ROOT, alive, end, reply, text, wait_gone

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = "the quick brown fox jumps over the lazy dog. " * 60


@pytest.fixture(scope="module")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fault") / "mark"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ring(folder: Path, mark: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXO_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv(MARK, str(mark))
        session = open_session(folder, opener="open_raising", chunk=32)
        yield session
        pids = session.pids
        await session.close()
        assert all(wait_gone(pid) for pid in pids)


class Strike:
    """Does something to the ring once a long request is in a phase."""

    def __init__(self, session: Session, phase: str, blow: Callable[[], object]) -> None:
        self.session, self.old, self.restarts = session, session.pids, session.restarts
        self._wanted = Text if phase == "decode" else Progress
        self._prompt = "hello" if phase == "decode" else LONG
        self._blow = blow
        self.at = 0.0

    def _look(self, event: Event) -> bool:
        if isinstance(event, self._wanted) and not self.at:
            self.at = time.monotonic()
            self._blow()
        return False

    async def run(self, token: CancelToken | None = None) -> list[Event]:
        return await reply(
            self.session, self._prompt, token=token, at=self._look, task="complete", max_tokens=1000
        )

    async def ended_within(self, seconds: float) -> None:
        """The request is over in time, no old process is left, and a fresh ring answers."""
        assert time.monotonic() - self.at < seconds
        for pid in self.old:
            assert await asyncio.to_thread(wait_gone, pid)
        events = await reply(self.session, "hello", task="complete", max_tokens=4)
        assert end(events).reason == "length" and text(events)
        assert not {*self.old} & {*self.session.pids} and self.session.restarts == self.restarts + 1


def failure(events: list[Event]) -> tuple[str, str]:
    last = end(events)
    assert last.reason == "error" and last.error is not None, last
    return last.error["code"], last.error["message"]


def soak(*cases: tuple[str, int]) -> list[object]:
    return [pytest.param(*case, marks=pytest.mark.soak) for case in cases]


@pytest.mark.parametrize("tokens", [20, pytest.param(200, marks=pytest.mark.soak)])
async def test_unlike_blas_on_two_ranks(ring: Session, tokens: int) -> None:
    """Logits that differ in the last digits: the tokens are one rank's alone, so nobody waits for ever. The
    first request also tells of each rank's loading."""
    loaded = ring.loaded
    found = await reply(ring, "once upon a time", task="complete", max_tokens=tokens)
    assert end(found).reason == "length" and end(found).usage.completion_tokens == tokens
    assert text(found)
    done = {e.rank: (e.done, e.total) for e in found if isinstance(e, Status) and e.phase == "loading"}
    assert loaded or all(done[rank][0] == done[rank][1] for rank in (0, 1))


@pytest.mark.parametrize(
    ("phase", "rank"), [("prefill", 1), *soak(("decode", 0), ("prefill", 0), ("decode", 1))]
)
async def test_a_rank_that_is_killed(ring: Session, phase: str, rank: int) -> None:
    await ring.load()
    strike = Strike(ring, phase, lambda: os.kill(ring.pids[rank], signal.SIGKILL))
    code, message = failure(await strike.run())
    assert code == "worker_died" and message.startswith(f"Rank {rank} on this machine of ring was killed")
    await strike.ended_within(2)


@pytest.mark.soak  # with small engines tests/runtime does the same
async def test_a_rank_that_is_killed_while_nothing_runs(ring: Session) -> None:
    await ring.load()
    strike = Strike(ring, "idle", lambda: None)
    os.kill(ring.pids[1], signal.SIGKILL)
    strike.at = time.monotonic()
    assert await asyncio.to_thread(wait_gone, strike.old[0]), "the rest of the ring must not stay"
    await strike.ended_within(5)


@pytest.mark.parametrize(
    ("phase", "rank"), soak(("decode", 1), ("decode", 0), ("prefill", 0), ("prefill", 1))
)
async def test_a_rank_that_is_stopped(ring: Session, phase: str, rank: int) -> None:
    await ring.load()
    strike = Strike(ring, phase, lambda: os.kill(ring.pids[rank], signal.SIGSTOP))
    code, message = failure(await strike.run())
    assert code == "stalled" and message == f"Rank {rank} on this machine of ring gives no sign of life."
    await strike.ended_within(6)


@pytest.mark.soak
@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_that_is_stopped_while_nothing_runs(ring: Session, rank: int) -> None:
    """The next request learns of it, or if it had not begun goes to a fresh ring."""
    await ring.load()
    strike = Strike(ring, "idle", lambda: None)
    os.kill(ring.pids[rank], signal.SIGSTOP)
    strike.at = time.monotonic()
    if rank == 0:
        events = await reply(ring, "hello", task="complete", max_tokens=4)
        assert end(events).reason == "length"
    else:
        code, message = failure(await strike.run())
        assert code == "stalled" and message == "Rank 1 on this machine of ring gives no sign of life."
    await strike.ended_within(30)


@pytest.mark.soak
@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_whose_pipe_is_lost(ring: Session, rank: int) -> None:
    """As when ssh ends: the rank ends itself in the middle of its work, and with it the ring."""
    await ring.load()
    group = ring._loader.ready
    assert group is not None
    process: Any = group.ranks[rank]
    strike = Strike(ring, "decode", lambda: process._process.stdin.close())
    code, message = failure(await strike.run())
    assert code == "worker_died" and message.startswith(f"Rank {rank} on this machine of ring ")
    await strike.ended_within(2)


@pytest.mark.parametrize(
    ("phase", "rank"), [("decode", 0), *soak(("decode", 1), ("prefill", 0), ("prefill", 1))]
)
async def test_a_cancel_returns_although_a_rank_is_stopped(ring: Session, phase: str, rank: int) -> None:
    await ring.load()
    token = CancelToken()

    def blow() -> None:
        os.kill(ring.pids[rank], signal.SIGSTOP)
        token.cancel()

    strike = Strike(ring, phase, blow)
    last = end(await strike.run(token))
    assert last.reason == "cancelled" and last.cancel is not None
    assert last.cancel.killed and last.cancel.kept_tokens == 0
    await strike.ended_within(8)


@pytest.mark.parametrize(
    ("phase", "rank"), [("decode", 1), *soak(("decode", 0), ("prefill", 0), ("prefill", 1))]
)
async def test_a_rank_that_raises(ring: Session, mark: Path, phase: str, rank: int) -> None:
    await ring.load()
    strike = Strike(ring, phase, lambda: mark.write_text(str(rank)))
    code, message = failure(await strike.run())
    assert code == "engine_failed" and "a fault made by a test" in message
    await strike.ended_within(3)


async def test_a_rank_that_fails_while_it_opens(folder: Path) -> None:
    session = open_session(folder, opener="open_never", connect_timeout=3)
    start = time.monotonic()
    with pytest.raises(ExoError, match="MemoryError: a fault made by a test"):
        await session.load()
    assert time.monotonic() - start < 10
    await session.close()


async def test_a_program_that_is_killed_leaves_no_rank(folder: Path) -> None:
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
