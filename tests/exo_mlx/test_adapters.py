"""LoRA adapters as mlx-lm writes them: the loaded model is the fused one; what does not fit is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from exocli import ModelBroken, ModelNotFound
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model

from exo_mlx import gguf, loader
from tests.exo_mlx import tiny

PARAMETERS = {"rank": 4, "scale": 10.0, "dropout": 0.3}
TOKENS = mx.array([[5, 9, 33, 7, 250, 4, 12]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp("base") / "model", "bfloat16")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("quantized")
    tiny.write_gguf(base / "m.gguf", "Q4_1")
    (base / "model").mkdir()
    gguf.convert(base / "m.gguf", base / "model")
    return base / "model"


def write_adapter(model_path: Path, path: Path, kind: str = "lora", **parameters: Any) -> Any:
    """An adapter as mlx_lm.lora leaves it, with random weights; → the model that has it."""
    path.mkdir()
    model, _ = load_model(model_path)
    config = {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": {**PARAMETERS, **parameters}}
    linear_to_lora_layers(model, 2, config["lora_parameters"], use_dora=kind == "dora")
    mx.random.seed(3)
    trained = {
        name: mx.random.normal(array.shape, scale=0.05)
        for name, array in tree_flatten(model.parameters())
        if name.endswith(("lora_a", "lora_b"))
    }
    model.load_weights(list(trained.items()), strict=False)
    magnitudes = {n: a for n, a in tree_flatten(model.parameters()) if n.endswith(".m")}
    mx.save_safetensors(str(path / "adapters.safetensors"), {**trained, **magnitudes})
    (path / "adapter_config.json").write_text(json.dumps(config))
    return model


def fused(model: Any) -> Any:
    """Every adapted layer replaced by one dense layer, as mlx_lm.fuse does it."""
    model.set_dtype(mx.float32)
    layers = [(name, m.fuse(dequantize=True)) for name, m in model.named_modules() if hasattr(m, "fuse")]
    assert layers
    model.update_modules(tree_unflatten(layers))
    return model.eval()


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("base", ["model", "quantized"])
def test_it_computes_what_the_fused_model_does(
    kind: str, base: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(base)
    expected = fused(write_adapter(path, tmp_path / "mine", kind))(TOKENS)
    loaded = loader.load(path, adapter=tmp_path / "mine")
    got = loaded.model(TOKENS)
    assert got.dtype == mx.float32
    assert {a.dtype for _, a in tree_flatten(loaded.model.parameters())} == {mx.float32}
    assert mx.allclose(got, expected, atol=1e-4).item()
    assert not mx.allclose(got, loader.load(path).model(TOKENS), atol=1e-2).item()
    assert loaded.notes[0] == f"Adapter mine ({kind}, rank 4)."


def test_weights_that_stay_packed_take_one_too(quantized: Path, tmp_path: Path) -> None:
    expected = write_adapter(quantized, tmp_path / "mine").eval()(TOKENS)
    loaded = loader.load(quantized, adapter=tmp_path / "mine", cpu_dtype="keep")
    assert loaded.dtype == "4-bit" and mx.allclose(loaded.model(TOKENS), expected, atol=1e-4).item()


def test_chosen_layers_only_and_embeddings(model: Path, tmp_path: Path) -> None:
    keys = ["self_attn.v_proj", "model.embed_tokens"]
    expected = fused(write_adapter(model, tmp_path / "mine", keys=keys))(TOKENS)
    assert mx.allclose(
        loader.load(model, adapter=tmp_path / "mine").model(TOKENS), expected, atol=1e-4
    ).item()


def test_a_fully_tuned_model(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "full"
    path.mkdir()
    name = "model.layers.1.mlp.up_proj.weight"
    mx.save_safetensors(str(path / "adapters.safetensors"), {name: mx.zeros((tiny.FEED, tiny.HIDDEN))})
    (path / "adapter_config.json").write_text('{"fine_tune_type": "full"}')
    loaded = loader.load(model, adapter=path)
    assert (
        not loaded.model.layers[1].mlp.up_proj.weight.any().item()
        and loaded.notes[0] == "Adapter full (full)."
    )


def refused(model: Path, path: Path) -> str:
    with pytest.raises((ModelBroken, ModelNotFound)) as caught:
        loader.load(model, adapter=path)
    message = caught.value.message
    assert str(path) in message and "\n" not in message and message.endswith(".")
    return message


def test_what_is_no_adapter_or_another_model_s_is_one_sentence(model: Path, tmp_path: Path) -> None:
    assert "no adapter folder" in refused(model, tmp_path / "none")
    path = tmp_path / "mine"
    write_adapter(model, path)
    weights, config = path / "adapters.safetensors", path / "adapter_config.json"
    whole, good = weights.read_bytes(), json.loads(config.read_text())
    weights.write_bytes(whole[:-10])
    with pytest.raises(ModelBroken, match=r"adapters\.safetensors has"):
        loader.load(model, adapter=path)
    weights.write_bytes(whole)
    config.write_text(json.dumps({**good, "lora_parameters": {**PARAMETERS, "rank": 8}}))
    assert "does not fit the model" in refused(model, path)
    config.write_text(json.dumps({"num_layers": 2}))
    assert "does not fit the model" in refused(model, path)
    config.write_text(json.dumps({"peft_type": "LORA"}))
    assert "peft" in refused(model, path)
    config.unlink()
    assert "adapter_config.json" in refused(model, path)
