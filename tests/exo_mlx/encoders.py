"""Small embedding models with random weights in Hugging Face's format, and BERT once more in numpy.

The numpy form is written from the papers and the config alone, in float64, one text at a time: nothing of
exo_mlx is in it.
"""

from __future__ import annotations

import json
from math import erf
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

Weights = dict[str, np.ndarray[Any, Any]]
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 40,
    "vocab_size": 64,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
_ERF = np.vectorize(erf)


def write_folder(
    path: Path, *, pooling: dict[str, Any] | None = None, normalize: bool = False, **config: Any
) -> Path:
    """A folder of sentence-transformers' form; `config` changes config.json (None takes a key away)."""
    settings = {"model_type": "bert", "pad_token_id": 0, "type_vocab_size": 2, **SHAPE, **config}
    settings = {key: value for key, value in settings.items() if value is not None}
    path.mkdir(parents=True)
    _write(path / "config.json", settings)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", **({"Normalize": "2_Normalize"} if normalize else {})}
    rows = [{"path": part, "type": f"sentence_transformers.models.{name}"} for name, part in kinds.items()]
    _write(path / "modules.json", rows)
    (path / "1_Pooling").mkdir()
    _write(path / "1_Pooling" / "config.json", pooling or {"pooling_mode_mean_tokens": True})
    arrays = {name: mx.array(array) for name, array in random_weights(settings).items()}
    mx.save_safetensors(str(path / "model.safetensors"), arrays)
    _tokenizer(settings).save(str(path / "tokenizer.json"))
    return path


def _write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


def _tokenizer(config: dict[str, Any]) -> Tokenizer:
    """Letters as tokens, small; [CLS] and [SEP] around a text."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{c}" for c in letters)]
    vocabulary = {word: number for number, word in enumerate(words[: config["vocab_size"]])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_truncation(8)  # as published files have it: how the file was last used
    made.enable_padding(length=8)
    return made


def random_weights(config: dict[str, Any]) -> Weights:
    rng = np.random.default_rng(7)
    width, inner = config["hidden_size"], config["intermediate_size"]

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    found = {
        "embeddings.word_embeddings.weight": draw(config["vocab_size"], width),
        "embeddings.position_embeddings.weight": draw(config["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": draw(config["type_vocab_size"], width),
        "embeddings.position_ids": np.arange(4)[None],
        "pooler.dense.weight": draw(width, width),
    }
    norms = ["embeddings.LayerNorm"]
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        for name, rows, columns in (
            *((f"attention.self.{part}", width, width) for part in ("query", "key", "value")),
            ("attention.output.dense", width, width),
            ("intermediate.dense", inner, width),
            ("output.dense", width, inner),
        ):
            found |= {f"{layer}.{name}.weight": draw(rows, columns), f"{layer}.{name}.bias": draw(rows)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name in norms:
        found |= {f"{name}.weight": 1 + draw(width), f"{name}.bias": draw(width)}
    return found


def read_weights(path: Path) -> Weights:
    stored: Any = mx.load(str(path / "model.safetensors"))
    return {name: np.array(array) for name, array in stored.items()}


def forward(weights: Weights, config: dict[str, Any], ids: list[int]) -> np.ndarray[Any, Any]:
    """(tokens, width) of one text."""
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    first = config["pad_token_id"] + 1 if "roberta" in config["model_type"] else 0

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    positions = weights["embeddings.position_embeddings.weight"][first : first + len(ids)]
    x = weights["embeddings.word_embeddings.weight"][ids].astype(np.float64) + positions
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        q, k, v = (
            linear(x, f"{layer}.attention.self.{part}").reshape(len(ids), heads, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = (shares @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = norm(x + linear(mixed, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        inner = linear(x, f"{layer}.intermediate.dense")
        inner = inner * (1 + _ERF(inner / np.sqrt(2))) / 2
        x = norm(x + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x


def unit(vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return vector / np.linalg.norm(vector)
