"""The model source: names to folders, imports, removal, and what is said when it cannot be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from exocli import CancelToken, ModelBroken, ModelNotFound, ModelRef, Unavailable, UsageError

from exo_mlx import models, wheel
from tests.exo_mlx import tiny
from tests.exo_mlx.conftest import DEFAULT, EMBEDDER


def nothing(done: int, total: int) -> None:
    return


def builtin(name: str) -> ModelRef:
    return ModelRef(kind="builtin", name=name)


def path(value: Path) -> ModelRef:
    return ModelRef(kind="path", name=str(value))


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    tiny.write_gguf(tmp_path / "Tiny Model.Q4_1.gguf")
    return tmp_path / "Tiny Model.Q4_1.gguf"


def test_nothing_is_here_at_first(home: Path) -> None:
    source = models.source()
    assert list(source.models()) == [] and set(source.aliases()) == {"smollm2", "minilm"}
    assert source.locate(DEFAULT) is None and source.accepts(DEFAULT)
    assert source.download_size(DEFAULT) == wheel.SMOLLM2.size
    for ask in (source.show, source.remove):
        with pytest.raises(ModelNotFound, match="smollm2"):
            ask(DEFAULT)
    assert not home.exists(), "asking makes no folders"


def test_an_import_is_a_model_by_its_name(home: Path, gguf: Path) -> None:
    source, seen = models.source(), []
    info = source.import_file(gguf, None, lambda done, total: seen.append((done, total)))
    assert info.name == "tiny-model.q4_1" and seen[-1][0] == seen[-1][1]
    assert Path(info.path) == home / "models" / info.name
    assert [m.name for m in source.models()] == [info.name]
    assert "imported" in source.aliases()[info.name]
    assert source.locate(builtin(info.name)) == Path(info.path) and source.accepts(builtin(info.name))
    assert source.show(builtin(info.name)).source == str(gguf)
    assert source.show(builtin(info.name)).details["dtype"] == "4-bit"
    with pytest.raises(UsageError, match="already"):
        source.import_file(gguf, info.name, nothing)
    assert source.remove(builtin(info.name)) == info.size
    assert list(source.models()) == []


def test_imports_that_are_refused_leave_nothing(home: Path, gguf: Path, tmp_path: Path) -> None:
    source = models.source()
    (tmp_path / "junk.gguf").write_text("junk")
    with pytest.raises(ModelBroken):
        source.import_file(tmp_path / "junk.gguf", None, nothing)
    for name in ("../x", "a/b", "", ".hidden"):
        if name:
            with pytest.raises(UsageError, match="name"):
                source.import_file(gguf, name, nothing)
    with pytest.raises(UsageError, match="built-in"):
        source.import_file(gguf, "smollm2", nothing)
    with pytest.raises(ModelNotFound):
        source.import_file(tmp_path / "none.gguf", None, nothing)
    assert [p.name for p in (home / "models").iterdir() if p.suffix != ".lock"] == []


def test_what_a_killed_conversion_left_is_swept_away(home: Path, gguf: Path) -> None:
    left = home / "models" / ".m.part"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    (left / "config.json").write_text("{}")
    source = models.source()
    assert list(source.models()) == []
    source.import_file(gguf, "m", nothing)
    assert not left.exists() and [m.name for m in source.models()] == ["m"]


def test_a_damaged_import_is_made_again_and_can_be_removed(home: Path, gguf: Path) -> None:
    source = models.source()
    weights = Path(source.import_file(gguf, "m", nothing).path, "model.safetensors")
    weights.unlink()
    again = source.import_file(gguf, "m", nothing)
    assert weights.is_file() and list(source.models()) == [again]
    weights.unlink()
    assert source.remove(builtin("m")) > 0 and not weights.parent.exists()


@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_a_pull_mends_a_damaged_built_in_model(
    home: Path, minilm_wheel: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder = tiny.write_folder(home / "models" / EMBEDDER.name)
    weights = folder / "model.safetensors"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:-100])
    with monkeypatch.context() as patch:
        patch.setenv("EXO_OFFLINE", "1")
        with pytest.raises(Unavailable, match="EXO_OFFLINE"):
            models.source().pull(EMBEDDER, nothing, CancelToken())
    downloads = home / "cache" / "downloads"
    downloads.mkdir(parents=True)
    shutil.copy(minilm_wheel, downloads)
    info = models.source().pull(EMBEDDER, nothing, CancelToken())
    assert info.size > 80_000_000 and info.details["layers"] == 6


def test_paths(home: Path, gguf: Path, tmp_path: Path) -> None:
    source = models.source()
    folder = tiny.write_folder(tmp_path / "model")
    (tmp_path / "empty").mkdir()
    assert source.locate(path(folder)) == folder and source.accepts(path(folder))
    assert source.locate(path(gguf)) == gguf and source.accepts(path(gguf))
    assert source.locate(path(tmp_path / "none")) is None and not source.accepts(path(tmp_path / "none"))
    assert not source.accepts(path(tmp_path / "empty"))
    assert source.show(path(folder)).details["architecture"] == "llama"
    with pytest.raises(UsageError, match="yours to delete"):
        source.remove(path(folder))
    with pytest.raises(ModelNotFound):
        source.pull(path(tmp_path / "none"), nothing, CancelToken())


def test_offline(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXO_OFFLINE", "1")
    for ref in (DEFAULT, ModelRef(kind="hub", name="org/model")):
        with pytest.raises(Unavailable, match="EXO_OFFLINE"):
            models.source().pull(ref, nothing, CancelToken())
    assert models.source().download_size(ModelRef(kind="hub", name="org/model")) is None
    assert not home.exists()


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXO_HOME", str(tmp_path / "file"))
    with pytest.raises(Unavailable, match="EXO_HOME") as caught:
        models.source().pull(DEFAULT, nothing, CancelToken())
    assert str(tmp_path / "file") in caught.value.message


def test_the_default_model_is_complete(smollm2_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXO_HOME", str(smollm2_home))
    info = models.source().show(DEFAULT)
    assert {p.name for p in Path(info.path).iterdir()} == {
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "exo.json"),
        *("model.safetensors", "model.safetensors.index.json"),
    }
    assert models.source().pull(DEFAULT, nothing, CancelToken()) == info, "a second pull does nothing"


def test_listing_imports_nothing_heavy(home: Path) -> None:
    code = (
        "import sys; from exo_mlx.models import source; s = source(); list(s.models()); s.aliases();"
        "print([m for m in ('mlx', 'mlx_lm', 'transformers', 'numpy', 'httpx2', 'pip') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
