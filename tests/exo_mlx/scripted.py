"""A tiny qwen3 that says what it is told to: mlx-lm's own class, each token followed by one other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models import qwen3

WIDTH = 32
THINKS = ["<think>", "Hmm", " sure", ".", "</think>", "Hello", " there", "!"]
CALLS = ["<tool_call>", '{"', "name", '":"', "time", '"}', "</tool_call>"]
SCRIPTS = {"\n": THINKS, "\n\n": CALLS}
"""After the prompt of Qwen3's template for a reply that may think, and for one that may not."""
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": WIDTH,
    "intermediate_size": 8,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def write(
    path: Path,
    files: Path,
    tokenizer: Any,
    scripts: Mapping[str, Sequence[str]] = SCRIPTS,
    layers: int = 1,
) -> Path:
    """A model folder. `files`: the tokenizer's; a script is said after a prompt whose last token is its
    key, piece by piece, and no token may be in two places. Without a script it says token 0 for ever."""
    shutil.copytree(files, path)
    end = tokenizer.eos_token_id
    config = {**CONFIG, "num_hidden_layers": layers, "vocab_size": len(tokenizer), "eos_token_id": end}
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    follows: dict[int, int] = {}
    for start, script in scripts.items():
        parts = [start, *script]
        chain = [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False)]
        for token, after in zip(chain, [*chain[1:], end], strict=True):
            assert token not in follows, f"{tokenizer.decode([token])!r} is in two places"
            follows[token] = after
    assert len(follows) <= WIDTH
    # The layer adds nothing; a token's embedding is a direction of its own, which the head of the token
    # that follows it reads.
    table, head = (mx.zeros((len(tokenizer), WIDTH)) for _ in range(2))
    for place, (token, after) in enumerate(follows.items()):
        table[token, place] = 1.0
        head[after, place] = 1.0

    def draw(name: str, array: Any) -> Any:
        if name.startswith(("model.embed_tokens", "lm_head")):
            return table if "embed" in name else head
        return mx.zeros_like(array) if array.ndim > 1 else array

    model.update(tree_map_with_path(draw, model.parameters()))
    arrays = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), arrays, {"format": "mlx"})
    (path / "config.json").write_text(json.dumps(config))
    return path
