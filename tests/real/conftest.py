"""One loaded model for all tests here, on one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from exocli import plugins
from exocli.runtime.session import Session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)
            if pytest_asyncio.is_async_test(item):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    """The default model through the session, as every command has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXO_HOME", str(tmp_path_factory.mktemp("home")))
        async with Session(spec=plugins.backend("mlx"), model="smollm2", path=str(smollm2)) as opened:
            yield opened
