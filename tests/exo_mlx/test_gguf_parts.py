"""Models in several files: imported whole, or refused with the names of what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exocli import CancelToken, ModelBroken, ModelNotFound
from gguf import dequantize

from exo_mlx import gguf_parts, models
from exo_mlx.gguf_parts import GGUFModel
from tests.exo_mlx import tiny


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    """A model in three files, written by the gguf package."""
    tiny.write_gguf(tmp_path / "m.gguf", "Q8_0", parts=3)
    return sorted(tmp_path.glob("m-*.gguf"))


def test_names() -> None:
    one = Path("d/a-00002-of-00003.gguf")
    assert [p.name for p in gguf_parts.parts(one)] == [f"a-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert gguf_parts.stem(one) == "a" and gguf_parts.stem(Path("b-1-of-2.gguf")) == "b-1-of-2"
    assert gguf_parts.parts(Path("b.gguf")) == [Path("b.gguf")]


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_stands_for_all(split: list[Path], given: int, tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "whole.gguf", "Q8_0")
    with GGUFModel(split[given]) as parts, GGUFModel(tmp_path / "whole.gguf") as whole:
        assert {t.name for t in parts.tensors} == {t.name for t in whole.tensors}
        assert parts.metadata["general.architecture"] == "llama"
        other = {t.name: t for t in whole.tensors}
        for tensor in parts.tensors:
            assert np.array_equal(parts.data(tensor), whole.data(other[tensor.name])), tensor.name


def test_rows_of_a_tensor(tmp_path: Path) -> None:
    values = tiny.write_gguf(tmp_path / "m.gguf", "F32")
    with GGUFModel(tmp_path / "m.gguf") as model:
        tensor = next(t for t in model.tensors if t.name == "token_embd.weight")
        some = dequantize(model.data(tensor, 3, 5).view("<f4"), 0)
        assert np.array_equal(some, values["model.embed_tokens.weight"][3:8])
        assert len(model.data(tensor, tensor.rows - 1, 5)) == 1


def test_an_import_takes_the_name_without_the_number(split: list[Path], home: Path) -> None:
    info = models.source().import_file(split[1], None, lambda done, total: None)
    assert info.name == "m" and info.details["layers"] == tiny.LAYERS
    assert models.gguf_folder(split[0], lambda done, total: None, CancelToken()).name.startswith("m-")


def test_missing_parts_are_named(split: list[Path]) -> None:
    split[0].unlink()
    split[2].unlink()
    with pytest.raises(ModelBroken, match=r"m-00001-of-00003\.gguf, m-00003-of-00003\.gguf are not beside"):
        GGUFModel(split[1])
    split[1].unlink()
    with pytest.raises(ModelNotFound):
        GGUFModel(split[1])


def test_a_part_under_another_name_is_refused(split: list[Path]) -> None:
    with pytest.raises(ModelBroken, match="one of 3 parts"):
        GGUFModel(split[0].rename(split[0].with_name("renamed.gguf")))


def test_parts_of_different_models_are_refused(split: list[Path], tmp_path: Path) -> None:
    split[2].write_bytes(split[1].read_bytes())
    with pytest.raises(ModelBroken, match="do not belong together"):
        GGUFModel(split[0])
