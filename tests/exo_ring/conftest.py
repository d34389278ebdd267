"""Rings of a tiny model on this machine, in real processes that must all be gone afterwards."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from exocli import ModelRef, plugins
from exocli.runtime.session import Session

from exo_ring.options import Options
from tests.exo_ring import tiny
from tests.support.runtime import ROOT, wait_gone

Make = Callable[..., Session]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that waits for ever is a failure, not a hang. Large counts may take longer."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the test takes too long")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(600 if request.node.get_closest_marker("soak") else 120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def open_session(folder: Path, backend: str = "ring", opener: str | None = None, **options: Any) -> Session:
    spec = plugins.backend(backend)
    if opener is not None:
        spec = replace(spec, open=f"tests.exo_ring.faulty:{opener}")
    if backend == "ring":
        known = Options(**{"ranks": 2, **options} if "hostfile" not in options else options)
        options = {name: getattr(known, name) for name in Options.__dataclass_fields__}
    return Session(
        spec=spec,
        model="tiny",
        path=str(folder),
        ref=ModelRef(kind="path", name=str(folder)),
        options=options,
    )


@pytest.fixture
async def make(folder: Path) -> AsyncIterator[Make]:
    """make(backend="ring", opener=None, **options) → Session."""
    made: list[Session] = []

    def build(backend: str = "ring", opener: str | None = None, **options: Any) -> Session:
        session = open_session(options.pop("folder", folder), backend, opener, **options)
        made.append(session)
        return session

    yield build
    for session in made:
        pids = session.pids
        await session.close()
        assert not session.flights
        assert all(wait_gone(pid) for pid in pids)
