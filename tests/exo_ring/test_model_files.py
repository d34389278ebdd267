"""A model's sizes and its fingerprint, from its files alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from exocli import ModelBroken

from exo_ring import model_files
from tests.exo_ring import tiny


def test_the_shape_counts_every_byte(folder: Path) -> None:
    shape = model_files.read_shape(folder)
    size = (folder / "model.safetensors").stat().st_size
    stored = sum(bytes_ for bytes_, _ in (*shape.layers, shape.embedding, shape.head))
    assert 0 < size - stored < 20_000, "all but the header"
    assert len(shape.layers) == tiny.LAYERS and len({*shape.layers}) == 1
    assert all(bytes_ == 4 * parameters for bytes_, parameters in shape.layers)
    assert shape.head == (0, 0) and shape.kind == "llama"
    assert (shape.heads, shape.kv_heads, shape.kv_values) == (4, 2, 2 * 2 * 16)


def test_a_packed_weight_counts_the_parameters_it_stands_for(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "q")
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {"group_size": 32, "bits": 4, "model.layers.1.mlp.up_proj": {"bits": 8}}
    (tmp_path / "q" / "config.json").write_text(json.dumps(config))
    found = {}
    for name, array in mx.load(str(folder / "model.safetensors")).items():
        bits = 8 if name.startswith("model.layers.1.mlp.up_proj") else 4
        if array.ndim == 2:
            owner = name.removesuffix(".weight")
            weight, scales, biases = mx.quantize(array, group_size=32, bits=bits)
            found |= {name: weight, f"{owner}.scales": scales, f"{owner}.biases": biases}
        else:
            found[name] = array
    mx.save_safetensors(str(tmp_path / "q" / "model.safetensors"), found)
    packed, whole = model_files.read_shape(tmp_path / "q"), model_files.read_shape(folder)
    assert [p for _, p in packed.layers] == [p for _, p in whole.layers]
    assert packed.layers[0][0] < packed.layers[1][0] < whole.layers[0][0] / 2


def test_equal_models_have_equal_fingerprints(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    first = model_files.fingerprint(folder)
    assert model_files.fingerprint(copy) == first
    (copy / "notes.txt").write_text("not part of the model")
    assert model_files.fingerprint(copy) == first
    for name in ("config.json", "tokenizer.json"):
        original = (copy / name).read_bytes()
        (copy / name).write_bytes(original + b" ")
        assert model_files.fingerprint(copy) != first
        (copy / name).write_bytes(original)
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    assert model_files.fingerprint(copy) != first


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", b"{", "config.json of .* cannot be read"),
        ("config.json", b"[]", "is not an object"),
        ("config.json", b"{}", 'cannot plan a "None" model'),
        ("model.safetensors", b"", "is not a whole safetensors file"),
        ("model.safetensors", b"\xff" * 100, "is not a whole safetensors file"),
        ("model.safetensors", (2).to_bytes(8, "little") + b"[]", "its header cannot be read"),
        ("model.safetensors", (9).to_bytes(8, "little") + b'{"a": {}}', "its header cannot be read"),
        ("model.safetensors", None, "There are no weights"),
    ],
)
def test_what_is_broken_is_named(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    if content is None:
        (broken / name).unlink()
    else:
        (broken / name).write_bytes(content)
    with pytest.raises(ModelBroken, match=said):
        model_files.read_shape(broken)
