"""A worker that dies, hangs or misbehaves: a clear error in bounded time, and the next request works."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from exocli import Event, Progress, Request, WorkerSpec
from exocli.errors import EngineFailed, ModelNotFound, WorkerDied
from exocli.runtime import group, process, watchdog
from exocli.runtime.process import ProcessRank
from exocli.runtime.session import Session

from tests.runtime.conftest import Make
from tests.support.runtime import ROOT, alive, children, end, is_progress, is_text, reply, text, wait_gone


async def works_again(session: Session) -> None:
    assert text(await reply(session, "a b", max_tokens=2)) == "a b "


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_killed_at_work_it_fails_its_requests_within_two_seconds(make: Make, phase: str) -> None:
    session = make()
    when = is_text if phase == "decode" else is_progress
    prompt = "x forever" if phase == "decode" else "x " * 2000
    killed = 0.0

    def kill(event: Event) -> bool:
        nonlocal killed
        if when(event) and not killed:
            killed = time.monotonic()
            os.kill(session.pids[0], signal.SIGKILL)
        return False

    events = await reply(session, prompt, at=kill)
    took = time.monotonic() - killed
    last = end(events)
    assert last.reason == "error" and last.error is not None and took < 2
    assert last.error["code"] == "worker_died" and "SIGKILL" in last.error["message"]
    assert last.error["message"].startswith("The worker of test-step-worker was killed")
    await works_again(session)
    assert session.restarts == 1


async def test_killed_while_idle_the_next_request_does_not_notice(make: Make) -> None:
    session = make()
    for round_ in range(3):
        await works_again(session)
        os.kill(session.pids[0], signal.SIGKILL)  # and no time to notice before the next request
        assert session.restarts == round_


async def test_killed_while_idle_and_noticed(make: Make) -> None:
    session = make()
    await works_again(session)
    (pid,) = session.pids
    os.kill(pid, signal.SIGKILL)
    while session.loaded:
        await asyncio.sleep(0.001)
    assert session.pids == [] and session.facts == {}
    await works_again(session)
    assert session.restarts == 1


async def test_killed_while_it_loads(make: Make) -> None:
    session = make(hang_open=True)
    loads, before = asyncio.Event(), children()
    task = asyncio.create_task(session.load(lambda *_: loads.set()))
    await loads.wait()
    (child,) = children() - before
    os.kill(child, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        await task


async def test_a_prompt_that_kills_the_worker_while_it_is_prepared_is_tried_once_more(make: Make) -> None:
    session = make()
    last = end(await reply(session, "prepare-die"))
    assert last.error is not None and last.error["code"] == "worker_died"
    await works_again(session)
    assert session.restarts == 2


@pytest.mark.parametrize(
    ("place", "prompt"),
    [
        ("worker", "a raise"),
        ("worker", "a quit"),
        ("inline", "a raise"),
        ("inline", "a quit"),
        ("inline", "a odd"),
    ],
)
async def test_an_exception_in_a_step_fails_its_requests_and_restarts(
    make: Make, place: str, prompt: str
) -> None:
    session = make(place)
    last = end(await reply(session, prompt))
    assert last.error is not None and last.error["code"] == "engine_failed"
    expected = {"a raise": "ValueError: the word was raise", "a quit": "SystemExit: 3", "a odd": "gave a str"}
    assert expected[prompt] in last.error["message"]
    await works_again(session)
    assert session.restarts == 1


async def test_an_exception_in_prepare_is_that_requests_alone(make: Make) -> None:
    session = make()
    other = asyncio.create_task(reply(session, "x y " * 20, max_tokens=30))
    for word in ("prepare-quit", "prepare-none", "prepare-odd", "prepare-raise"):
        last = end(await reply(session, word))
        assert last.error is not None and last.error["code"] == "engine_failed", word
    assert end(await other).reason == "length" and session.restarts == 0
    await works_again(session)


@pytest.mark.parametrize(
    ("place", "word"),
    [
        ("inline", "raise"),
        ("inline", "quit"),
        ("inline", "odd"),
        ("inline", "stray"),
        ("inline", "silent"),
        ("worker", "quit"),
    ],
)
async def test_a_stream_that_fails_fails_alone(make: Make, place: str, word: str) -> None:
    session = make(place, "open_echo", "stream")
    other = asyncio.create_task(reply(session, "x y " * 20))
    last = end(await reply(session, f"a {word}"))
    assert last.reason == "error" and last.error is not None and last.error["code"] == "engine_failed"
    assert end(await other).reason == "stop" and session.restarts == 0


async def test_a_stream_that_raises_cancelled_on_cancel_is_cancelled(make: Make) -> None:
    session = make("inline", "open_echo", "stream")
    last = end(await reply(session, "a rude", at=is_text))
    assert last.reason == "cancelled" and last.cancel is not None and last.cancel.phase == "decode"


# ------------------------------------------------------------------------------------------- opening


@pytest.mark.parametrize("place", ["worker", "inline"])
async def test_an_engine_that_cannot_open_says_why(make: Make, place: str) -> None:
    session = make(place, fail_open=True)
    last = end(await reply(session, "a"))
    assert last.error == {"code": "model_not_found", "message": "There is no such thing to count."}
    with pytest.raises(ModelNotFound):
        await session.load()
    assert not session.loaded and not session.loading


@pytest.mark.parametrize("place", ["worker", "inline"])
async def test_an_engine_that_exits_while_opening_is_an_error(make: Make, place: str) -> None:
    session = make(place, quit_open=True)
    with pytest.raises(EngineFailed, match="SystemExit: 3"):
        await session.load()


async def test_a_process_that_ends_while_opening_is_an_error_with_its_last_line(make: Make) -> None:
    session = make(exit_open=7, noise=True)
    with pytest.raises(WorkerDied, match=r"ended with status 7\. Its last line: the last words") as caught:
        await session.load()
    assert "the last words" in caught.value.details["stderr"]


async def test_an_opener_that_is_no_opener(make: Make) -> None:
    for opener, reason in (("nothing", "AttributeError"), ("launch", "not an engine|TypeError")):
        with pytest.raises(EngineFailed, match=reason):
            await make("inline", opener).load()


# --------------------------------------------------------------------------------- the protocol's pipe


async def test_what_a_library_prints_does_not_reach_the_protocol(make: Make, home: Path) -> None:
    session = make(noise=True)
    events = await reply(session, "a print b", max_tokens=3)
    assert text(events) == "a print b "
    log = (home / "logs" / "test-step-worker-rank0.log").read_text()
    assert "noise on stdout" in log and '"t":"step"' in log


@pytest.mark.parametrize("place", ["worker", "inline"])
async def test_what_an_engine_logs_is_in_the_log_and_not_on_the_terminal(
    make: Make, home: Path, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    session = make(place, noise=True)
    await session.load()
    await session.close()
    assert "a line for the log" in (home / "logs" / f"test-step-{place}-rank0.log").read_text()
    assert "a line for the log" not in "".join(capfd.readouterr())


async def test_what_a_library_reads_is_not_the_protocol(make: Make) -> None:
    events = await reply(make(), "a input b", max_tokens=3)
    assert text(events) == "a input b "


async def test_a_log_that_cannot_be_written_does_not_stop_the_work(make: Make, home: Path) -> None:
    home.mkdir()
    (home / "logs").write_text("a file where the folder belongs")
    await works_again(make(noise=True))


# ------------------------------------------------------------------------------- what is left behind


async def test_a_child_of_a_dead_worker_neither_hides_the_death_nor_stays(make: Make) -> None:
    session = make(child=True)
    await session.load()
    child = session.facts["child"]
    assert alive(child)
    last = end(await reply(session, "a die"))
    assert last.error is not None and last.error["code"] == "worker_died"
    assert await asyncio.to_thread(wait_gone, child)
    await session.load()
    child = session.facts["child"]
    await session.close()
    assert await asyncio.to_thread(wait_gone, child)


@pytest.fixture
async def rank(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProcessRank]:
    """One that its command puts out of reach of signals, told of on a terminal that is gone."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    ready = asyncio.Event()

    def on_line(number: int, line: dict[str, Any]) -> None:
        if line["t"] == "ready":
            ready.set()

    engines = "tests.support.engines"
    order = {"backend": "count", "open": f"{engines}:open_counting", "model": "count"}
    order |= {"open_options": f"{engines}:Options", "options": {"noise": True}, "cache_dir": str(home)}
    found = ProcessRank(
        WorkerSpec(prefix=("setsid",)), on_line, lambda number, reason: None, home / "rank.log", True
    )
    await found.start(order)
    await ready.wait()
    yield found
    await found.kill()


async def test_a_rank_that_no_signal_reaches_ends_when_its_parent_ends_it(rank: ProcessRank) -> None:
    async with asyncio.timeout(5):
        await rank.kill()
    assert rank.tail()[-1] == "the last words", "a terminal that is gone does not stop the log"


async def test_an_idle_worker_uses_no_cpu(make: Make) -> None:
    session = make()
    await works_again(session)
    (pid,) = session.pids

    def used() -> tuple[int, int]:
        """Clock ticks, and how often its threads went to sleep."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        tasks = Path(f"/proc/{pid}/task").glob("*/status")
        switches = [line for t in tasks for line in t.read_text().splitlines() if "ctxt_switches" in line]
        return int(fields[11]) + int(fields[12]), sum(int(line.split()[1]) for line in switches)

    await asyncio.sleep(0.6)  # the last heartbeat may still be due: they are 0.5 s apart
    before = used()
    await asyncio.sleep(1.0)
    assert used() == before


@pytest.mark.parametrize("work", ["idle", "hang", "open", "child"])
def test_a_worker_never_outlives_its_parent(work: str, tmp_path: Path) -> None:
    """The parent is killed with -9 while the worker waits, hangs in a step, or loads."""
    program = f"""
import asyncio, sys
from exocli import Request
from exocli.runtime.session import Session
from tests.support.engines import spec

async def main():
    options = {{"hang_open": {work == "open"}, "child": {work == "child"}}}
    session = Session(spec=spec(), model="m", path="m", options=options)
    prompt = "a b hang" if {work == "hang"} else "a"
    async for event in session.stream(Request(prompt=prompt, max_tokens=1)):
        if event.type == "status" and event.done == 3 and {work == "open"}:
            import pathlib, os
            print(*pathlib.Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split(), flush=True)
        if event.type == "text" or event.type == "progress" and {work == "hang"}:
            print(*session.pids, *filter(None, [session.facts.get("child")]), flush=True)
            break
    await asyncio.Event().wait()

asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "EXO_HOME": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == (2 if work == "child" else 1) and all(map(alive, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert all(wait_gone(pid) for pid in pids)


async def test_a_close_waits_for_a_worker_that_the_system_takes_away_late(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes in time; the end of the session is the end of the process as well."""
    waitpid = os.waitpid

    def late(pid: int, options: int) -> tuple[int, int]:
        ended = waitpid(pid, options)
        time.sleep(0.3)
        return ended

    monkeypatch.setattr(os, "waitpid", late)
    monkeypatch.setattr(process, "TAIL_GRACE", 0.05)
    session = make()
    last = end(await reply(session, "a die"))
    assert last.error is not None and last.error["code"] == "worker_died"
    assert session._loader.group is not None
    (rank,) = session._loader.group.ranks
    await session.close()
    assert isinstance(rank, process.ProcessRank) and rank._process is not None
    assert rank._process.returncode == -signal.SIGKILL


async def test_a_hundred_requests_leave_no_descriptor(make: Make) -> None:
    session = make()
    await works_again(session)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        await asyncio.gather(*(reply(session, "a", max_tokens=1) for _ in range(5)))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_closed_inline_session_leaves_no_thread(make: Make) -> None:
    before = set(threading.enumerate())
    for opener, protocol in (("open_counting", "step"), ("open_echo", "stream")):
        session = make("inline", opener, protocol)
        await reply(session, "a", max_tokens=1)
        await session.close()
    for options in ({"fail_open": True}, {"quit_open": True}):
        session = make("inline", **options)
        await reply(session, "a")
        await session.close()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("exo-"):
            thread.join(5)
            assert not thread.is_alive(), thread.name


async def test_a_clock_gap_of_our_own_is_nobodys_fault(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent stands still (Ctrl-Z, sleep) for longer than every limit: nothing is ended for it."""
    monkeypatch.setattr(group, "TICK", 0.02)
    monkeypatch.setattr(group, "GAP", 0.5)
    monkeypatch.setattr(watchdog, "BEAT_LIMIT", 1.5)
    session = make(ranks=2)
    stream = session.stream(Request(prompt="x " * 300, max_tokens=1))
    async for event in stream:
        if isinstance(event, Progress) and event.processed == 5:
            time.sleep(2.0)
            break
    last = end([e async for e in stream])
    assert last.reason == "length" and session.restarts == 0
