"""The flags of the conformance kit, for `pytest --pyargs exocli.testing.suite --exo-backend NAME`.

pytest loads this in every run where exocli is installed, so it imports nothing and does nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("exo", "the conformance kit of exo")
    group.addoption("--exo-backend", metavar="NAME", help="the backend that exocli.testing.suite runs on")
    group.addoption("--exo-model", metavar="MODEL", help="the model; default: what exo would choose")
    group.addoption(
        "--exo-option", metavar="KEY=VALUE", action="append", default=[], help="an option of the backend"
    )
