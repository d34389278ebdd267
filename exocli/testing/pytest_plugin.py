"""The flags of the conformance kit, for `pytest --pyargs exocli.testing.suite --exo-backend NAME`.

pytest loads this in every run where exocli is installed, so it imports nothing until it is used.
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
    group.addoption(
        "--exo-xfail",
        metavar="TEST=REASON",
        action="append",
        default=[],
        help="a test of the kit that this backend is known to fail, and why",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A known failure is named with its reason, shows in the summary, and must go on failing."""
    known = [pair.partition("=") for pair in config.getoption("--exo-xfail", default=[])]
    if not known:
        return
    import pytest

    suite = "exocli.testing.suite"
    kit = {
        item.name: item for item in items if getattr(getattr(item, "module", None), "__name__", "") == suite
    }
    for name, _, reason in known:
        if name not in kit or not reason.strip():
            raise pytest.UsageError(
                f"--exo-xfail takes the name of a test of the kit and a reason, not {name!r}"
            )
        kit[name].add_marker(pytest.mark.xfail(reason=reason, strict=True))
