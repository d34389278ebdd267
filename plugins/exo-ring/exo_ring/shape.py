"""The sizes of a model that a plan needs, as its config and its tensors' names give them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exocli import ModelBroken


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's sizes in bytes as stored and in parameters: of each layer, of the embedding and of the
    head (0, 0 = tied to the embedding). `kv_values`: numbers that a token adds to the KV cache, a layer."""

    kind: str
    layers: tuple[tuple[int, int], ...]
    embedding: tuple[int, int]
    head: tuple[int, int]
    heads: int
    kv_heads: int
    intermediate: int
    group_size: int | None
    kv_values: int


def shape_from(config: Mapping[str, Any], tensors: Mapping[str, tuple[int, int]]) -> Shape:
    """A Shape from config.json and {tensor name: (bytes stored, parameters)}. Raises ModelBroken where
    the config lacks a size that a plan needs."""
    text: Mapping[str, Any] = {**config, **config.get("text_config", {})}
    kind = str(config.get("model_type"))
    try:
        count = int(text["num_hidden_layers"])
        heads = int(text["num_attention_heads"])
        hidden = int(text["hidden_size"])
        kv_heads = int(text.get("num_key_value_heads") or heads)
        head_dim = int(text.get("head_dim") or hidden // heads)
        intermediate = int(text.get("moe_intermediate_size") or text["intermediate_size"])
    except (KeyError, TypeError, ValueError) as error:
        reason = f'The ring cannot plan a "{kind}" model: its config has no valid {error}.'
        raise ModelBroken(reason) from error
    layers = [[0, 0] for _ in range(count)]
    ends = {"embedding": [0, 0], "head": [0, 0]}
    for name, (stored, parameters) in tensors.items():
        _, found, rest = name.partition("layers.")
        number = rest.split(".")[0]
        if found and number.isdigit() and int(number) < count:
            entry = layers[int(number)]
        else:
            entry = ends["head" if "lm_head" in name else "embedding"]
        entry[0] += stored
        entry[1] += parameters
    quantization = config.get("quantization") or config.get("quantization_config") or {}
    group = quantization.get("group_size")
    return Shape(
        kind=kind,
        layers=tuple((a, b) for a, b in layers),
        embedding=(ends["embedding"][0], ends["embedding"][1]),
        head=(ends["head"][0], ends["head"][1]),
        heads=heads,
        kv_heads=kv_heads,
        intermediate=intermediate,
        group_size=int(group) if group else None,
        kv_values=2 * kv_heads * head_dim,
    )
