"""A small model folder with a real tokenizer and random weights whose greedy text varies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.exo_mlx import tiny as mlx_tiny

HIDDEN, LAYERS, HEADS, KV_HEADS, FEED = 64, 4, 4, 2, 128


def write(path: Path, **config: Any) -> Path:
    """A llama of four layers whose heads divide by 2; `config` replaces entries of config.json."""
    import mlx.core as mx

    mlx_tiny.write_folder(path)
    base = json.loads((path / "config.json").read_text())
    sizes = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "intermediate_size": FEED,
        "max_position_embeddings": 4096,
    }
    made = {**base, **sizes, **config}
    (path / "config.json").write_text(json.dumps(made))
    arrays = {name: mx.array(value) for name, value in _weights(len(mlx_tiny.vocabulary()[0]), made).items()}
    mx.save_safetensors(str(path / "model.safetensors"), arrays, {"format": "mlx"})
    return path


def _weights(vocabulary: int, config: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    hidden, feed = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        shapes |= {
            f"{base}.input_layernorm.weight": (hidden,),
            f"{base}.post_attention_layernorm.weight": (hidden,),
            f"{base}.self_attn.q_proj.weight": (hidden, hidden),
            f"{base}.self_attn.k_proj.weight": (kv, hidden),
            f"{base}.self_attn.v_proj.weight": (kv, hidden),
            f"{base}.self_attn.o_proj.weight": (hidden, hidden),
            f"{base}.mlp.gate_proj.weight": (feed, hidden),
            f"{base}.mlp.up_proj.weight": (feed, hidden),
            f"{base}.mlp.down_proj.weight": (hidden, feed),
        }
    found = {}
    for name, shape in shapes.items():
        values = rng.normal(0, 1.5 / shape[-1] ** 0.5, shape) if len(shape) > 1 else rng.normal(1, 0.1, shape)
        found[name] = values.astype(np.float32)
    # Untied in spirit: random text must not run into an end token at once.
    found["model.embed_tokens.weight"][:3] *= 0.01
    return found
