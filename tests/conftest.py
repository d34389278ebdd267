"""What every test may use: the real built-in models, fetched once for all runs of this checkout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

from exo_mlx import blas

CACHE = Path(__file__).parent / ".cache" / "exo"

# Started in the background (nohup, CI) SIGINT may be ignored, which children inherit; we test Ctrl-C in them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where bytecode is not to be written, each of the many processes that the tests start would compile the
# project anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# On a busy machine an example takes as long as it takes.
hypothesis.settings.register_profile("exo", deadline=None)
hypothesis.settings.load_profile("exo")

# Before any test module imports mlx: what runs in this process should run on the fast BLAS as well.
blas.prepare(CACHE.parent / "blas")


def pulled(name: str) -> Path:
    """An EXO_HOME that holds a built-in model, pulled as a user would pull it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("EXO_")}
    command = [sys.executable, "-m", "exocli", "models", "pull", name]
    done = subprocess.run(
        command, env={**env, "EXO_HOME": str(CACHE)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return CACHE


@pytest.fixture(scope="session")
def smollm2_home() -> Path:
    return pulled("smollm2")


@pytest.fixture(scope="session")
def smollm2(smollm2_home: Path) -> Path:
    """The default model's folder."""
    return smollm2_home / "models" / "smollm2"


@pytest.fixture(scope="session")
def minilm_home() -> Path:
    return pulled("minilm")


@pytest.fixture(scope="session")
def minilm(minilm_home: Path) -> Path:
    """The embedding model's folder."""
    return minilm_home / "models" / "minilm"
