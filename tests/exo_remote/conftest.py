"""No key, address or proxy of the outside reaches these tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh EXO_HOME."""
    for name in list(os.environ):
        if name.startswith("EXO_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EXO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
