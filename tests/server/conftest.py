"""Servers that several tests share: starting one takes half a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import Serving


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EXO_HOME for servers that configure nothing."""
    return tmp_path_factory.mktemp("serve-home")


@pytest.fixture(scope="session")
def server(home: Path) -> Iterator[Serving]:
    """A server with the scripted engine, loaded. Its log and counters hold other modules' requests too."""
    with Serving(home) as serving:
        serving.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "wake up"}]})
        yield serving
