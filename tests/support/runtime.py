"""What the tests of the runtime share: drive a session to its end, and look at processes from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exocli import CancelToken, Event, Finished, Progress, Request, Text
from exocli.runtime.session import Session

ROOT = Path(__file__).parents[2]
"""Goes into PYTHONPATH, so that workers can import tests.support.engines."""


async def reply(
    session: Session,
    prompt: str,
    *,
    at: Callable[[Event], bool] | None = None,
    token: CancelToken | None = None,
    **fields: Any,
) -> list[Event]:
    """All events of one request; the token is cancelled at the first event for which `at` holds."""
    token = token or CancelToken()
    events: list[Event] = []
    async for event in session.stream(Request(prompt=prompt, **fields), token):
        events.append(event)
        if at is not None and at(event):
            token.cancel()
    assert [e for e in events if isinstance(e, Finished)] == events[-1:], "one Finished, and it is the last"
    assert {e.id for e in events} == {events[0].id}
    return events


def children_of(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def children() -> set[int]:
    """This process's children. Fixtures of other modules may have some: compare with those before."""
    return children_of(os.getpid())


def end(events: list[Event]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


def text(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, Text))


def is_text(event: Event) -> bool:
    return isinstance(event, Text)


def is_progress(event: Event) -> bool:
    return isinstance(event, Progress)


def alive(pid: int) -> bool:
    """A zombie that nobody has waited for counts as gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # reading the entry of one that just went
        return not Path("/proc/self").exists()  # without /proc (macOS) the signal's word counts


def wait_gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether the process ends within that time. It is not ours to wait for, so we look again and again."""
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
