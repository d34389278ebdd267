"""The GGUF architectures that can be converted: their names for tensors, and what config.json says of them.

A family is data, which gguf.py reads. Names: gguf's constants.py. Pure: a path is for messages only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from exocli import ModelBroken
from numpy.typing import NDArray

ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that is config in mlx-lm: what Llama 3.1 and later divide each rotary frequency by."""
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
"""Outside the layers, alike in all families; without `output` the embedding serves as head."""
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_FEED_FORWARD = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_USUAL = {**_ATTENTION, "ffn_norm": "post_attention_layernorm", **_FEED_FORWARD}
_GEMMA3_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_GEMMA3_27B_LAYERS = 62

Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one GGUF architecture maps to one of mlx-lm's.

    `layer`: GGUF name (without `blk.N.` and the `.weight` or `.bias`) → mlx-lm's name.
    `config`: (metadata, architecture) → what config.json says beyond the shapes.
    `permuted`: those whose rows GGUF stores in another order for its rotary embedding, with what counts
    their heads in config.json. `biases`: names that have a bias all together or not at all, with the
    config key that says so; None where they always have. `shifted`: GGUF holds these weights plus one.
    """

    model_type: str
    layer: Mapping[str, str]
    config: Callable[[Metadata, str], dict[str, Any]]
    permuted: Mapping[str, str]
    biases: tuple[tuple[str | None, tuple[str, ...]], ...] = ()
    shifted: frozenset[str] = frozenset()


def _common(metadata: Metadata, arch: str) -> dict[str, Any]:
    heads = int(metadata[f"{arch}.attention.head_count"])
    hidden = int(metadata[f"{arch}.embedding_length"])
    return {
        "hidden_size": hidden,
        "num_hidden_layers": int(metadata[f"{arch}.block_count"]),
        "intermediate_size": int(metadata[f"{arch}.feed_forward_length"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.get(f"{arch}.attention.head_count_kv", heads)),
        "head_dim": int(metadata.get(f"{arch}.attention.key_length", hidden // heads)),
        "rms_norm_eps": _short(metadata[f"{arch}.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _short(metadata.get(f"{arch}.rope.freq_base", 10000.0)),
        "max_position_embeddings": int(metadata[f"{arch}.context_length"]),
    }


def _silu(architecture: str) -> Callable[[Metadata, str], dict[str, Any]]:
    return lambda metadata, arch: {
        "architectures": [architecture],
        **_common(metadata, arch),
        "hidden_act": "silu",
    }


def _gemma3(metadata: Metadata, arch: str) -> dict[str, Any]:
    """Scale of the attention and period of the global layers as llama.cpp and the models' own configs have
    them: no GGUF file says them."""
    common = _common(metadata, arch)
    wide = common["num_hidden_layers"] == _GEMMA3_27B_LAYERS
    return {
        "architectures": ["Gemma3ForCausalLM"],
        **common,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": common["hidden_size"] // common["num_attention_heads"]
        if wide
        else common["head_dim"],
        "rope_local_base_freq": _short(metadata.get(f"{arch}.rope.freq_base_swa", 10000.0)),
        "sliding_window": int(metadata[f"{arch}.attention.sliding_window"]),
        "sliding_window_pattern": _period(metadata.get(f"{arch}.attention.sliding_window_pattern", 6)),
    }


def _period(pattern: int | list[bool]) -> int:
    """Every how many layers one sees everything; newer files list for each whether its window slides."""
    if not isinstance(pattern, list):
        return int(pattern)
    period = pattern.index(False) + 1
    if any(slides == ((layer + 1) % period == 0) for layer, slides in enumerate(pattern)):
        raise ValueError("sliding_window_pattern")
    return period


def _short(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


FAMILIES: dict[str, Family] = {
    "llama": Family(
        model_type="llama",
        layer=_USUAL,
        config=_silu("LlamaForCausalLM"),
        permuted={"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"},
        biases=(
            ("attention_bias", ("attn_q", "attn_k", "attn_v", "attn_output")),
            ("mlp_bias", tuple(_FEED_FORWARD)),
        ),
    ),
    "qwen2": Family(
        model_type="qwen2",
        layer=_USUAL,
        config=_silu("Qwen2ForCausalLM"),
        permuted={},
        biases=((None, ("attn_q", "attn_k", "attn_v")),),
    ),
    "qwen3": Family(
        model_type="qwen3",
        layer={**_USUAL, **_HEAD_NORMS},
        config=_silu("Qwen3ForCausalLM"),
        permuted={},
    ),
    "gemma3": Family(
        model_type="gemma3_text",
        layer={**_ATTENTION, **_HEAD_NORMS, **_GEMMA3_NORMS, **_FEED_FORWARD},
        config=_gemma3,
        permuted={},
        shifted=frozenset(("attn_norm", "output_norm", *_HEAD_NORMS, *_GEMMA3_NORMS)),
    ),
}


def check(metadata: Metadata, arch: str, config: Mapping[str, Any], path: Path) -> None:
    """Raises ModelBroken for what the metadata asks for and mlx-lm's model would not do."""
    expected = {
        "expert_count": (0,),
        "rope.dimension_count": (config["head_dim"],),
        "attention.value_length": (config["head_dim"],),
        "rope.scaling.attn_factor": (0, 1),
        "attn_logit_softcapping": (0,),
        "final_logit_softcapping": (0,),
    }
    if FAMILIES[arch].model_type == "qwen2":  # mlx-lm's qwen2 knows no other head size
        expected["attention.key_length"] = (config["hidden_size"] // config["num_attention_heads"],)
    for key, values in expected.items():
        value = metadata.get(f"{arch}.{key}")
        if value is not None and value not in values:
            raise ModelBroken(f"{path} has {arch}.{key} = {value}, which cannot be converted.")


def rope_scaling(
    metadata: Metadata, arch: str, factors: NDArray[np.float32] | None, config: Mapping[str, Any], path: Path
) -> dict[str, Any] | None:
    """config.json's `rope_scaling`; `factors` is what ROPE_FACTORS holds. Raises ModelBroken, naming it."""
    if factors is not None:
        return _llama3(factors, config, path)
    kind = metadata.get(f"{arch}.rope.scaling.type", "none")
    factor = metadata.get(f"{arch}.rope.scaling.factor", metadata.get(f"{arch}.rope.scale_linear", 0))
    if kind == "none" and f"{arch}.rope.scaling.type" not in metadata and factor:
        kind = "linear"  # what files before there was a type mean
    if kind == "none" or (kind == "linear" and factor in (0, 1)):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": _short(factor)}
    if kind == "yarn":
        trained = metadata[f"{arch}.rope.scaling.original_context_length"]
        beta = {
            name: _short(metadata[f"{arch}.rope.scaling.yarn_{name}"])
            for name in ("beta_fast", "beta_slow")
            if f"{arch}.rope.scaling.yarn_{name}" in metadata
        }
        return {
            "rope_type": "yarn",
            "factor": _short(factor),
            "original_max_position_embeddings": int(trained),
            **beta,
        }
    raise ModelBroken(f'{path} has {arch}.rope.scaling.type = "{kind}", which cannot be converted.')


def _llama3(factors: NDArray[np.float32], config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The settings that make these factors: Llama 3.1's, but for `factor`, which is the last of them."""
    factor, head = float(factors.flat[-1]), int(config["head_dim"])
    factor = factor if np.isfinite(factor) and factor > 0 else 1.0
    original = _LLAMA3["original_max_position_embeddings"]
    waves = 2 * np.pi * float(config["rope_theta"]) ** (np.arange(0, head, 2) / head)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if factors.size != expected.size or not np.allclose(factors.ravel(), expected, rtol=1e-3):
        raise ModelBroken(f"{path}: {ROPE_FACTORS} scales the rotary embedding in a way that is not known.")
    return {"rope_type": "llama3", "factor": _short(factor), **_LLAMA3}
