"""Penalties and logit_bias: what is allowed, and mlx-lm's processors for it.

What counts: repetition_penalty looks at prompt and reply (Keskar et al. 2019, as transformers has it);
presence and frequency penalties at the reply alone (OpenAI's formula: what was sampled before), both
over their whole length. Knows tokens and logits, no text and no requests in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
from exocli import BadRequest
from mlx_lm.sample_utils import make_logits_processors

Processor = Callable[[mx.array, mx.array], mx.array]
"""(all tokens so far (n,), logits (1, vocabulary)) → logits for the token after them."""

NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
LIMIT = 2.0
"""Of the presence and frequency penalties, either sign; OpenAI's."""
BIAS_LIMIT = 100.0
MAX_BIASES = 1024
WHOLE = 1 << 30
"""A window that holds every token."""


def settings(
    asked: Mapping[str, Any], config: Mapping[str, Any], model: Mapping[str, Any], vocabulary: int
) -> dict[str, Any]:
    """The four as plain data, `logit_bias` as [[token id, bias]…]; request > config > model > neutral.
    Raises BadRequest naming the field."""
    found: dict[str, Any] = {}
    for name, neutral in NEUTRAL.items():
        values = (source.get(name) for source in (asked, config, model))
        value = next((value for value in values if value is not None), neutral)
        if name == "repetition_penalty":
            fits, words = _number(value) and value > 0, "greater than 0"
        else:
            fits, words = _number(value) and abs(value) <= LIMIT, f"from {-LIMIT:g} to {LIMIT:g}"
        if not fits:
            raise BadRequest(f"{name} must be {words}, not {value}.", field=name)
        found[name] = float(value)
    return {**found, "logit_bias": _biases(asked.get("logit_bias") or {}, vocabulary)}


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _biases(given: Mapping[int, float], vocabulary: int) -> list[list[float]]:
    if len(given) > MAX_BIASES:
        raise BadRequest(f"logit_bias takes at most {MAX_BIASES} tokens.", field="logit_bias")
    for token, bias in given.items():
        if not 0 <= token < vocabulary:
            text = f"logit_bias names token {token}; this model has the tokens 0 to {vocabulary - 1}."
            raise BadRequest(text, field="logit_bias")
        if not _number(bias) or abs(bias) > BIAS_LIMIT:
            text = f"logit_bias must be from {-BIAS_LIMIT:g} to {BIAS_LIMIT:g}, not {bias} (token {token})."
            raise BadRequest(text, field="logit_bias")
    return [[token, float(bias)] for token, bias in given.items()]


def processors(settings: Mapping[str, Any], prompt_tokens: int) -> list[Processor]:
    """mlx-lm's processors for these settings; none for what is neutral."""
    found: list[Processor] = []
    if settings["logit_bias"]:
        bias = {int(token): value for token, value in settings["logit_bias"]}
        found += make_logits_processors(logit_bias=bias)
    if (penalty := settings["repetition_penalty"]) != 1.0:
        found += make_logits_processors(repetition_penalty=penalty, repetition_context_size=WHOLE)
    of_reply = make_logits_processors(
        presence_penalty=settings["presence_penalty"],
        presence_context_size=WHOLE,
        frequency_penalty=settings["frequency_penalty"],
        frequency_context_size=WHOLE,
    )
    return found + [_on_reply(one, prompt_tokens) for one in of_reply]


def _on_reply(processor: Processor, prompt_tokens: int) -> Processor:
    return lambda tokens, logits: processor(tokens[prompt_tokens:], logits)


def active(settings: Mapping[str, Any]) -> bool:
    return bool(settings["logit_bias"]) or any(settings[name] != value for name, value in NEUTRAL.items())


def vocabulary_of(tokenizer: Any, end_tokens: Sequence[int] = ()) -> int:
    """Token ids run below this."""
    return max(len(tokenizer), 1 + max(end_tokens, default=0))
