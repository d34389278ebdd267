"""What mlx-lm loads, loads here: tiny models of its own classes, as they are and quantized every way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from exocli import Message, ModelBroken, Part, Request, Unsupported
from exocli.supported import check_supported
from mlx import nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import _get_classes, load_model

from exo_mlx import loader
from exo_mlx.plugin import CAPABILITIES
from tests.exo_mlx import kinds, tiny

COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
SCALED = {
    "logits_scaling": 2.0,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3_text": {**kinds.CONFIGS["sliding"], "tie_word_embeddings": True},
    "phi3": {},
    "mamba2": kinds.CONFIGS["recurrent"],
    "qwen3_next": {**kinds.CONFIGS["hybrid"], **EXPERTS},
    "granite": SCALED,
    "olmo2": {},
    "starcoder2": {"norm_epsilon": 1e-5, "use_bias": True},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
}
TOKENS = mx.array([[5, 9, 33, 7, 250, 4, 12, 77, 8, 9, 10, 3, 100]])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp("tokenizer") / "m")


@pytest.fixture
def write(tokenizer: Path, tmp_path: Path) -> Callable[..., Path]:
    """write(model_type, quantization=None): a folder with random bfloat16 weights of that class."""

    def make(model_type: str, quantization: dict[str, Any] | None = None) -> Path:
        folder = tmp_path / model_type
        folder.mkdir()
        vocabulary = len(tiny.vocabulary()[0])
        config = {**COMMON, **CONFIGS[model_type], "model_type": model_type, "vocab_size": vocabulary}
        model_class, arguments = _get_classes(config)
        mx.random.seed(11)
        model = model_class(arguments.from_dict(config))
        model.update(tree_map(_random, model.parameters()))
        if config["tie_word_embeddings"] and "lm_head" in model:
            del model["lm_head"]
        if quantization is not None:
            config["quantization"] = quantize(model, quantization)
        mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
        (folder / "config.json").write_text(json.dumps(config))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / name, folder)
        return folder

    return make


def _random(array: mx.array) -> mx.array:
    return (array + mx.random.normal(array.shape, scale=0.1)).astype(mx.bfloat16)


def quantize(model: Any, how: dict[str, Any]) -> dict[str, Any]:
    """Every layer that can be, those named in `how` in their own way; → config.json's `quantization`."""
    special = {name: value for name, value in how.items() if isinstance(value, dict)}
    usual = {name: value for name, value in how.items() if name not in special}
    named: dict[str, Any] = {}

    def predicate(path: str, module: Any) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % 32:
            return False
        for end, value in special.items():
            if path.endswith(end):
                named[path] = value
                return value
        return True

    nn.quantize(model, **usual, class_predicate=predicate)
    return {**usual, **named}


def exact(folder: Path) -> mx.array:
    """mlx-lm's own load, computed in float32 with the weights as they are stored."""
    model, _ = load_model(folder)
    model.update(
        tree_map(
            lambda a: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a, model.parameters()
        )
    )
    logits: mx.array = model(TOKENS)
    return logits


def compare(folder: Path, expected: mx.array) -> None:
    loaded = loader.load(folder)
    kinds_found = {a.dtype for _, a in tree_flatten(loaded.model.parameters())}
    assert kinds_found == {mx.float32} and loaded.dtype == "float32"
    got = loaded.model(TOKENS)
    assert got.dtype == mx.float32 and expected.std().item() > 0.05
    assert mx.abs(got - expected).max().item() < 1e-3 * mx.abs(expected).max().item()


@pytest.mark.parametrize("model_type", [name for name in CONFIGS if name != "gpt_oss"])
def test_every_class_computes_what_mlx_lm_s_own_load_does(
    model_type: str, write: Callable[..., Path]
) -> None:
    folder = write(model_type)
    compare(folder, exact(folder))


MIXED = {
    "group_size": 32,
    "bits": 4,
    "mode": "affine",
    "embed_tokens": {"group_size": 64, "bits": 8},
    "o_proj": {"group_size": 32, "bits": 6},
    "down_proj": {"group_size": 32, "bits": 3},
    "lm_head": {"group_size": 32, "bits": 5},
}
QUANTIZED = [
    ("qwen3_moe", MIXED),
    ("gemma3_text", MIXED),
    ("mamba2", {"group_size": 32, "bits": 4}),
    ("qwen3_next", MIXED),
    ("gpt_oss", {"group_size": 32, "bits": 4, "mode": "mxfp4"}),
    ("llama", {"group_size": 32, "bits": 8, "mode": "mxfp8"}),
    ("llama", {"group_size": 16, "bits": 4, "mode": "nvfp4"}),
    (
        "mixtral",
        {
            "group_size": 32,
            "bits": 4,
            "mode": "mxfp4",
            "o_proj": {"group_size": 32, "bits": 8, "mode": "affine"},
        },
    ),
]


@pytest.mark.parametrize(("model_type", "how"), QUANTIZED)
def test_every_quantization_computes_what_mlx_lm_s_own_load_does(
    model_type: str, how: dict[str, Any], write: Callable[..., Path]
) -> None:
    folder = write(model_type, how)
    compare(folder, exact(folder))


# ------------------------------------------------------------------------------------- vision models


def test_a_vision_model_that_mlx_lm_serves_as_text_is_loaded_for_text(write: Callable[..., Path]) -> None:
    folder = write("gemma3_text")
    text = json.loads((folder / "config.json").read_text())
    plain = loader.load(folder).model(TOKENS)
    weights = {f"language_model.{name}": a for name, a in mx.load(str(folder / "model.safetensors")).items()}
    weights["vision_tower.vision_model.embeddings.patch_embedding.weight"] = mx.zeros((8, 3, 4, 4))
    weights["multi_modal_projector.mm_input_projection_weight"] = mx.zeros((8, 64))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    config = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {"hidden_size": 8},
        "vocab_size": text["vocab_size"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    loaded = loader.load(folder)
    assert mx.allclose(loaded.model(TOKENS), plain, atol=1e-5).item()
    assert loaded.context == 1024, "of the text part"


def test_a_vision_model_that_mlx_lm_does_not_know_is_one_sentence(write: Callable[..., Path]) -> None:
    folder = write("llama")
    (folder / "config.json").write_text(json.dumps({"model_type": "idefics9", "vision_config": {}}))
    with pytest.raises(ModelBroken, match='"idefics9", which mlx-lm does not know'):
        loader.load(folder)


def test_an_image_is_refused_by_capability() -> None:
    image = Message(role="user", content=(Part(kind="image", path="cat.png"), Part(text="What is it?")))
    with pytest.raises(Unsupported, match="image input") as caught:
        check_supported(Request(messages=(image,)), CAPABILITIES, "mlx")
    assert caught.value.details["field"] == "messages"


def test_a_config_that_transformers_refuses_is_one_sentence(write: Callable[..., Path]) -> None:
    folder = write("gemma2")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "query_pre_attn_scalar": 32.0}))
    with pytest.raises(ModelBroken, match="query_pre_attn_scalar") as caught:
        loader.load(folder)
    assert "expected int" in caught.value.message and "\n" not in caught.value.message
