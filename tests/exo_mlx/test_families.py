"""Every family's imported folder computes what the model that it was made from computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from exocli import ModelBroken
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import _get_classes, load_model, load_tokenizer

from exo_mlx import families, gguf, loader
from exo_mlx.gguf_parts import GGUFModel
from tests.exo_mlx import tiny
from tests.exo_mlx.test_tokenizer_gguf import PRE, metadata_of

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
GEMMA = {
    "query_pre_attn_scalar": 16,
    "sliding_window": 8,
    "sliding_window_pattern": 6,
    "num_hidden_layers": 7,
    "rope_local_base_freq": 10000.0,
}
GEMMA_KEYS = {"attention.sliding_window": 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
LINEAR = {"rope_type": "linear", "factor": 8.0}
LINEAR_KEYS = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def rope_factors(head: int = 16, base: float = 500000.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What llama.cpp's converter writes for LLAMA3: its own loop, one frequency after the other."""
    factors = []
    for n in range(0, head, 2):
        wave = 2 * np.pi * base ** (n / head)
        if wave < 8192 / 4.0:
            factors.append(1.0)
        elif wave > 8192 / 1.0:
            factors.append(32.0)
        else:
            smooth = (8192 / wave - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / 32.0 + smooth))
    return np.array(factors, np.float32)


def model_of(model_type: str, **changes: Any) -> Any:
    """mlx-lm's own class with random weights, norms and biases too."""
    config = {"model_type": model_type, **SMALL, "vocab_size": len(tiny.vocabulary()[0]), **changes}
    model_class, arguments = _get_classes(config)
    mx.random.seed(7)
    model = model_class(arguments.from_dict(config))
    model.update(tree_map(lambda a: mx.random.normal(a.shape, scale=0.2), model.parameters()))
    if model_type == "gemma3_text" and config["tie_word_embeddings"]:
        model.sanitize({})  # takes the head off
    mx.eval(model.parameters())
    return model


def gguf_arrays(model: Any, arch: str, heads: int = 4) -> dict[str, Any]:
    """The model's weights by GGUF's names, stored as llama.cpp's converter stores them."""
    family = families.FAMILIES[arch]
    inner = {ours: theirs for theirs, ours in family.layer.items()}
    outer = {ours: theirs for theirs, ours in families.TOP.items()}
    arrays = {}
    for name, array in tree_flatten(model.parameters()):
        module, _, leaf = name.rpartition(".")
        values = np.array(array)
        if module.startswith("model.layers."):
            _, _, layer, rest = module.split(".", 3)
            key, stem = inner[rest], f"blk.{layer}.{inner[rest]}"
        else:
            key = stem = outer[module]
        if key in family.permuted:
            counts = {"attn_q": heads, "attn_k": model.args.num_key_value_heads}
            values = tiny.permuted(values, counts[key])
        arrays[f"{stem}.{leaf}"] = values + 1 if key in family.shifted else values
    return arrays


def numbers(**changes: Any) -> dict[str, Any]:
    return {
        "embedding_length": 64,
        "block_count": 3,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 500000.0,
        "context_length": 256,
        **changes,
    }


CASES = [
    ("llama", "llama", {}, {}),
    ("llama", "llama", {"num_key_value_heads": 4}, {"attention.head_count_kv": None}),
    ("llama", "llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}, {}),
    ("llama", "llama", {"rope_scaling": LLAMA3}, {}),
    ("llama", "llama", {"rope_scaling": LINEAR}, {"rope.scale_linear": 8.0}),
    ("qwen2", "qwen2", {}, {}),
    ("qwen2", "qwen2", {"rope_scaling": YARN, "tie_word_embeddings": False}, YARN_KEYS),
    ("qwen3", "qwen3", {"head_dim": 32}, {"attention.key_length": 32}),
    ("gemma3", "gemma3_text", GEMMA, {**GEMMA_KEYS, "block_count": 7}),
    (
        "gemma3",
        "gemma3_text",
        {**GEMMA, "rope_scaling": LINEAR},
        {**GEMMA_KEYS, **LINEAR_KEYS, "block_count": 7},
    ),
]


@pytest.mark.parametrize(("arch", "model_type", "config", "keys"), CASES)
def test_the_imported_model_computes_the_same(
    arch: str, model_type: str, config: dict[str, Any], keys: dict[str, Any], tmp_path: Path
) -> None:
    original = model_of(model_type, **config)
    arrays = gguf_arrays(original, arch)
    if config.get("rope_scaling") is LLAMA3:
        arrays[families.ROPE_FACTORS] = rope_factors()
    source, folder = tmp_path / "m.gguf", tmp_path / "out"
    tiny.write_arrays(source, arch, {**numbers(**keys), **tiny.tokenizer_metadata()}, arrays)
    folder.mkdir()
    gguf.convert(source, folder)
    imported, _ = load_model(folder)
    tokens = mx.array([[5, 9, 33, 7, 250, 4, 12, 77, 8, 9, 10, 3, 100, 54, 2, 41, 9, 66, 91, 30]])
    difference = mx.abs(original(tokens) - imported(tokens)).max().item()
    assert difference < 1e-4 * mx.abs(original(tokens)).max().item()
    assert json.loads((folder / "config.json").read_text())["model_type"] == model_type


@pytest.mark.parametrize(("pattern", "period"), [([True, True, False, True, True, False, True], 3), (6, 6)])
def test_gemma3_s_global_layers_are_found(pattern: Any, period: int, tmp_path: Path) -> None:
    original = model_of("gemma3_text", **{**GEMMA, "sliding_window_pattern": period})
    keys = {**GEMMA_KEYS, "block_count": 7, "attention.sliding_window_pattern": pattern}
    metadata = {**numbers(**keys), **tiny.tokenizer_metadata()}
    tiny.write_arrays(tmp_path / "m.gguf", "gemma3", metadata, gguf_arrays(original, "gemma3"))
    with GGUFModel(tmp_path / "m.gguf") as model:
        assert gguf.plan(model)[1]["sliding_window_pattern"] == period
    uneven = {**metadata, "attention.sliding_window_pattern": [True, False, True, True, False, True, True]}
    tiny.write_arrays(tmp_path / "m.gguf", "gemma3", uneven, gguf_arrays(original, "gemma3"))
    with pytest.raises(ModelBroken, match="sliding_window_pattern"):
        gguf.convert(tmp_path / "m.gguf", tmp_path)


def test_rope_factors_that_are_not_llama_3_s_are_refused(tmp_path: Path) -> None:
    arrays = gguf_arrays(model_of("llama"), "llama")
    arrays[families.ROPE_FACTORS] = np.linspace(1, 40, 8, dtype=np.float32)
    tiny.write_arrays(tmp_path / "m.gguf", "llama", {**numbers(), **tiny.tokenizer_metadata()}, arrays)
    with pytest.raises(ModelBroken, match=r"rope_freqs\.weight"):
        gguf.convert(tmp_path / "m.gguf", tmp_path)


@pytest.mark.parametrize(
    ("arch", "tokenizer"), [("llama", "llama2"), pytest.param("qwen3", "qwen3", marks=pytest.mark.soak)]
)
def test_a_whole_model_with_its_real_tokenizer(
    arch: str, tokenizer: str, tmp_path: Path, home: Path, real_tokenizer: Callable[[str], Path]
) -> None:
    metadata = metadata_of(real_tokenizer(tokenizer), PRE[tokenizer])
    vocabulary = len(metadata["tokenizer.ggml.tokens"])
    small = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 2}
    original = model_of(arch, vocab_size=vocabulary, **small)
    keys = {"embedding_length": 32, "block_count": 1, "attention.head_count": 2}
    arrays = gguf_arrays(original, arch, heads=2)
    tiny.write_arrays(tmp_path / "m.gguf", arch, {**numbers(**keys), **metadata}, arrays)
    loaded = loader.load(tmp_path / "m.gguf")
    ours = loaded.tokenizer
    own = load_tokenizer(real_tokenizer(tokenizer))
    assert type(ours.detokenizer) is type(own.detokenizer) and len(ours) == len(own)
    text = "A sentence, tokenized in 12 pieces?"
    tokens = mx.array([ours.encode(text)])
    assert tokens.tolist() == [own.encode(text)]
    assert mx.allclose(original(tokens), loaded.model(tokens), atol=1e-4).item()
    if tokenizer == "qwen3":
        assert loaded.end_tokens == {151643, 151645} and ours.has_thinking and ours.has_tool_calling
        chat = [{"role": "user", "content": "hi"}]
        for more in ({}, {"enable_thinking": False}):
            rendered = [t.apply_chat_template(chat, add_generation_prompt=True, **more) for t in (ours, own)]
            assert rendered[0] == rendered[1]
