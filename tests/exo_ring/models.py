"""Tiny models of every architecture, with random weights: the same on every rank."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

_COMMON = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 64,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
_MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "head_dim": 8,
}
_GEMMA = {
    "num_hidden_layers": 6,
    "head_dim": 8,
    "sliding_window": 8,
    "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 8.0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_COMMON},
    "llama-untied": {"model_type": "llama", **_COMMON, "tie_word_embeddings": False},
    "llama-sliding": {
        "model_type": "llama",
        **_COMMON,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    },
    "mistral": {"model_type": "mistral", **_COMMON, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", **_COMMON},
    "qwen3": {"model_type": "qwen3", **_COMMON, "head_dim": 8},
    "qwen3_moe": {"model_type": "qwen3_moe", **_COMMON, **_MOE},
    "mixtral": {"model_type": "mixtral", **_COMMON, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma3_text": {"model_type": "gemma3_text", **_COMMON, **_GEMMA},
    "gemma3": {
        "model_type": "gemma3",
        "vocab_size": 64,
        "text_config": {"model_type": "gemma3_text", **_COMMON, **_GEMMA},
    },
}


def build(name: str) -> Any:
    """The model, its weights large enough that greedy text varies."""
    from mlx_lm.utils import MODEL_REMAPPING

    config = CONFIGS[name]
    kind = config["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(kind, kind)}")
    model = module.Model(module.ModelArgs.from_dict(dict(config)))
    mx.random.seed(7)

    def draw(array: Any) -> Any:
        if array.ndim < 2:
            return 1 + 0.1 * mx.random.normal(array.shape)
        return mx.random.normal(array.shape) * (2.0 / array.shape[-1] ** 0.5)

    model.update(tree_map(draw, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model
