"""One stage of a model: a slice of its layers, run between two neighbours.

Knows how an mlx-lm model is put together (embedding, layers, norm, head) and what travels from stage
to stage. Knows nothing of requests, commands or processes: `exo_ring.agreement` has those.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import make_prompt_cache

Array = Any
Model = Any


class Neighbours(Protocol):
    """What a stage needs of the wire; `exo_ring.link.Link` is the one on MLX."""

    def send(self, hidden: Array) -> None:
        """To the next stage, in the wire's dtype."""

    def receive(self, shape: tuple[int, ...]) -> Array:
        """From the stage before, in the wire's dtype."""


def _full_attention(model: Model) -> list[int | None]:
    return [None] * len(model.model.layers)


def _llama(model: Model) -> list[int | None]:
    window = model.model.sliding_window
    return [window if layer.use_sliding else None for layer in model.model.layers]


def _gemma3(model: Model) -> list[int | None]:
    pattern, window = model.args.sliding_window_pattern, model.args.sliding_window
    count = len(model.model.layers)
    return [None if i % pattern == pattern - 1 else window for i in range(count)]


_WINDOWS: dict[str, Callable[[Model], list[int | None]]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _full_attention,
    "qwen3": _full_attention,
    "mixtral": _full_attention,
    "qwen3_moe": _full_attention,
    "gemma3_text": _gemma3,
    "gemma3": _gemma3,
}
ARCHITECTURES = tuple(sorted(_WINDOWS))


@dataclass(frozen=True, slots=True)
class _Slice:
    """What a stage knows besides its weights. `windows[i]`: its layer i's sliding window, None = full
    attention. `scale`: the factor on the embedding."""

    windows: tuple[int | None, ...]
    caches: tuple[Any, ...]
    width: int
    scale: Any | None


class Stage(nn.Module):  # type: ignore[misc]
    """The layers `[start, stop)` of `model` as a model that mlx-lm's BatchGenerator can run.

    Every stage is called with the same shapes in the same order. All but the last answer with logits
    of width 1, which mean nothing: only the last stage samples. It holds the modules it needs and no
    others; with weights still on disk, evaluating its parameters loads this rank's share alone.
    """

    def __init__(self, model: Model, kind: str, start: int, stop: int, wire: Neighbours) -> None:
        super().__init__()
        caches = make_prompt_cache(model)[start:stop]
        windows = _WINDOWS[kind]
        model = getattr(model, "language_model", model)
        body = model.model
        self.is_first, self.is_last = start == 0, stop == len(body.layers)
        self.layers = list(body.layers[start:stop])
        tied = "lm_head" not in model
        if self.is_first or (self.is_last and tied):
            self.embed_tokens = body.embed_tokens
        if self.is_last:
            self.norm = body.norm
            if not tied:
                self.lm_head = model.lm_head
        # gemma3 rounds its factor to bf16 first, whatever it computes in.
        scale = mx.array(model.args.hidden_size**0.5, mx.bfloat16) if windows is _gemma3 else None
        width = model.args.hidden_size
        every = windows(model)
        self.narrowest = min((window for window in every if window is not None), default=None)
        """The smallest sliding window of the whole model."""
        self._slice = _Slice(tuple(every[start:stop]), tuple(caches), width, scale)
        self._wire = wire
        self.eval()

    def make_cache(self) -> list[Any]:
        """Empty KV caches for this stage's layers."""
        return list(copy.deepcopy(self._slice.caches))

    def __call__(self, inputs: Array, cache: Sequence[Any] | None = None) -> Array:
        """`inputs`: token ids (batch, length) → logits (batch, length, vocabulary), or of width 1."""
        batch, length = inputs.shape
        h = self._embed(inputs) if self.is_first else self._receive((batch, length, self._slice.width))
        caches = cache if cache is not None else [None] * len(self.layers)
        masks: dict[int | None, Any] = {}
        for layer, window, c in zip(self.layers, self._slice.windows, caches, strict=True):
            if window not in masks:
                masks[window] = create_attention_mask(h, c, window_size=window)
            h = layer(h, masks[window], c)
        if not self.is_last:
            self._wire.send(h)
            return mx.zeros((batch, length, 1))
        h = self.norm(h)
        return self.lm_head(h) if "lm_head" in self else self.embed_tokens.as_linear(h)

    def _embed(self, ids: Array) -> Array:
        h = self.embed_tokens(ids)
        return h if self._slice.scale is None else h * self._slice.scale.astype(h.dtype)

    def _receive(self, shape: tuple[int, ...]) -> Array:
        # A rank may compute in another dtype than the wire's: what it multiplies by decides.
        return self._wire.receive(shape).astype(self.layers[0].input_layernorm.weight.dtype)
