"""The encoder of BERT and RoBERTa in MLX: token ids in, one vector a token out. Knows no folders.

Devlin et al. 2018 (arXiv 1810.04805), in the "post-norm" form of Hugging Face's BertModel, whose weight
names `rename` translates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_ERF_ABOVE = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_ERF_BELOW = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03),
    -1.42647390514189e-02,
)


def _gelu(x: mx.array) -> mx.array:
    """x Φ(x) (Hendrycks and Gimpel 2016, arXiv 1606.08415).

    On the CPU MLX's erf takes as long as all matrix products of a layer together; there it is the rational
    function that Eigen and XLA use for float32, in powers of z², which errs by less than 2e-6 here.
    """
    if mx.default_device() != mx.cpu or x.dtype != mx.float32:
        y: mx.array = nn.gelu(x)
        return y
    z = mx.clip(x * 0.5**0.5, -4.0, 4.0)
    square = z * z
    above, below = mx.array(_ERF_ABOVE[0]), mx.array(_ERF_BELOW[0])
    for factor in _ERF_ABOVE[1:]:
        above = above * square + factor
    for factor in _ERF_BELOW[1:]:
        below = below * square + factor
    return 0.5 * x * (1.0 + z * above / below)


ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "gelu": _gelu,
    "gelu_new": nn.gelu_approx,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "relu": nn.relu,
}

_NAMES = (
    ("embeddings.word_embeddings.", "words."),
    ("embeddings.position_embeddings.", "positions."),
    ("embeddings.token_type_embeddings.", "types."),
    ("embeddings.LayerNorm.", "norm."),
    ("encoder.layer.", "layers."),
    ("attention.self.", "attention."),
    ("attention.output.dense.", "attention.out."),
    ("attention.output.LayerNorm.", "attention_norm."),
    ("intermediate.dense.", "up."),
    ("output.dense.", "down."),
    ("output.LayerNorm.", "down_norm."),
    (".gamma", ".weight"),
    (".beta", ".bias"),
)
"""Hugging Face's name → ours, in this order. gamma and beta: checkpoints that came from TensorFlow."""


def rename(name: str) -> str | None:
    """Our name of a weight; None for one that the vectors do not need (the pooler, a head)."""
    for prefix in ("bert.", "roberta."):
        name = name.removeprefix(prefix)
    if not name.startswith(("embeddings.", "encoder.")) or name == "embeddings.position_ids":
        return None
    for theirs, ours in _NAMES:
        name = name.replace(theirs, ours)
    return name


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        rows, length, width = x.shape

        def split(y: mx.array) -> mx.array:
            return y.reshape(rows, length, self.heads, -1).transpose(0, 2, 1, 3)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask=mask)
        out: mx.array = self.out(y.transpose(0, 2, 1, 3).reshape(rows, length, width))
        return out


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
        eps = float(config.get("layer_norm_eps", 1e-12))
        self.attention = Attention(width, int(config["num_attention_heads"]))
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.down_norm = nn.LayerNorm(width, eps=eps)
        self._act = ACTIVATIONS[str(config.get("hidden_act", "gelu"))]

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        x = self.attention_norm(x + self.attention(x, mask))
        y: mx.array = self.down_norm(x + self.down(self._act(self.up(x))))
        return y


class Encoder(nn.Module):  # type: ignore[misc]
    """`first_position`: the position of a text's first token. Raises KeyError, ValueError for a config
    that no encoder can be made of."""

    def __init__(self, config: Mapping[str, Any], first_position: int = 0) -> None:
        super().__init__()
        width = int(config["hidden_size"])
        if width % int(config["num_attention_heads"]):
            raise ValueError("hidden_size does not divide into the heads")
        if config.get("position_embedding_type", "absolute") != "absolute":
            raise ValueError(f"position_embedding_type {config['position_embedding_type']}")
        self._first = first_position
        self.words = nn.Embedding(int(config["vocab_size"]), width)
        self.positions = nn.Embedding(int(config["max_position_embeddings"]), width)
        self.types = nn.Embedding(int(config.get("type_vocab_size", 2)), width)
        self.norm = nn.LayerNorm(width, eps=float(config.get("layer_norm_eps", 1e-12)))
        self.layers = [Layer(config) for _ in range(int(config["num_hidden_layers"]))]

    def __call__(self, tokens: mx.array, real: mx.array | None = None) -> mx.array:
        """(texts, tokens) ids → (texts, tokens, width). `real` is true where a token is no padding, which
        stands at the end; None = there is none."""
        places = mx.arange(self._first, self._first + tokens.shape[1])
        x: mx.array = self.words(tokens) + self.positions(places) + self.types(mx.zeros((1,), mx.uint32))
        x = self.norm(x)
        mask = real[:, None, None, :] if real is not None else None
        for layer in self.layers:
            x = layer(x, mask)
        return x


def pool(x: mx.array, real: mx.array | None, how: str) -> mx.array:
    """One vector a text out of one a token: "mean", "max", "mean_sqrt_len" over the real ones, or "cls",
    the first. (Reimers and Gurevych 2019, arXiv 1908.10084, section 3.)"""
    if how == "cls":
        return x[:, 0]
    if how == "max":
        return (x if real is None else mx.where(real[..., None], x, -mx.inf)).max(axis=1)
    if real is None:
        real = mx.ones(x.shape[:2], mx.bool_)
    weights = real.astype(x.dtype)[..., None]
    count = weights.sum(axis=1)
    return (x * weights).sum(axis=1) / (mx.sqrt(count) if how == "mean_sqrt_len" else count)


def unit(vectors: mx.array) -> mx.array:
    """Each of length 1 (all zeros stay so)."""
    return vectors / mx.maximum(mx.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
