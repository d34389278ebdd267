"""Sessions with small engines, in real workers, that must leave no process behind."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from exocli.runtime.session import Session

from tests.support.engines import spec
from tests.support.runtime import ROOT, wait_gone

Make = Callable[..., Session]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """A test that waits for ever is a failure, not a hang."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the test takes too long")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """make(place, opener, protocol, concurrency=…, max_queue=…, **options) → Session."""
    made: list[Session] = []

    def build(
        place: str = "worker",
        opener: str = "open_counting",
        protocol: str = "step",
        *,
        concurrency: int | None = None,
        max_queue: int | None = None,
        **options: Any,
    ) -> Session:
        session = Session(
            spec=spec(protocol, place, opener),
            model="count",
            path="count",
            options=options,
            concurrency=concurrency,
            max_queue=max_queue,
        )
        made.append(session)
        return session

    yield build
    for session in made:
        pids = session.pids
        await session.close()
        assert not session.flights and not session._tasks
        assert all(wait_gone(pid) for pid in pids)
