"""The real client libraries, unmodified, in an environment of their own: installed once from the registries.

They bring many dependencies, which must not mix with the project's; so each client runs as a script there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.server.serving import Serving

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache"


def _once(folder: Path, wanted: Path, make: Callable[[], object]) -> None:
    """Call `make` unless the folder was made from these very wants."""
    stamp = folder / "made-from"
    digest = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()
    CACHE.mkdir(exist_ok=True)
    with FileLock(CACHE / f"{folder.name}.lock"):
        if not stamp.exists() or stamp.read_text() != digest:
            make()
            stamp.write_text(digest)


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter that has the Python clients."""
    folder, wanted = CACHE / "clients", HERE / "requirements.txt"
    binary = folder / "bin" / "python"

    def make() -> None:
        if not binary.exists():
            venv.create(folder, clear=True)
        # Our own pip is newer than the one a venv begins with, and several times as fast.
        pip = [sys.executable, "-m", "pip", "--python", str(binary)]
        command = [*pip, "install", "-q", "--no-compile", "-r", str(wanted)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

    _once(folder, wanted, make)
    return binary


@pytest.fixture(scope="session")
def node_folder() -> Path:
    """A folder whose node_modules has the Node clients, and the scripts beside it."""
    folder, wanted = CACHE / "clients-node", HERE / "node" / "package.json"
    folder.mkdir(parents=True, exist_ok=True)

    def make() -> None:
        shutil.copy(wanted, folder)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)

    _once(folder, wanted, make)
    for script in (HERE / "node").glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("clients-home")) as serving:
        serving.post("/v1/completions", {"prompt": "wake up"})
        yield serving


@pytest.fixture(scope="module")
def embedder(minilm_home: Path) -> Iterator[Serving]:
    """One with the real embedding model."""
    with Serving(minilm_home, "-m", "minilm", backend="mlx") as serving:
        yield serving


def run(command: list[str], cwd: Path, **env: str) -> dict[str, Any]:
    """A script's last line, as JSON."""
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "NO_PROXY": "*", **env}
    done = subprocess.run(
        command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
