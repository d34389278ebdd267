"""Where in a reply the grammar applies, and which tokens it allows next.

The grammar is for the answer: while the model thinks, only ending is held back, and a tool call in its
own tags is free. A function of the tokens so far, whatever was asked before: it can be asked again for
an earlier place. Knows tokens and logits; grammar.py knows what a format means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import mlx.core as mx
import numpy as np
from exocli import BadRequest, EngineFailed, Request
from llguidance import LLMatcher

from exo_mlx import channels
from exo_mlx.grammar import Grammars


class Constraint:
    """A logits processor: (tokens so far (n,), logits (1, vocabulary)) → logits in which only what may
    come next is left. `settings` is what `settings` below made; `grammar` is waited for when the answer
    begins; `narrow` has the last word on what `allowed` says. Raises EngineFailed where the tokens do not
    follow the grammar, or it grew too complex."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        end: Sequence[int],
        prompt_tokens: int,
        grammar: Future[LLMatcher],
        narrow: Callable[[list[int], bytes], bytes] = lambda answer, mask: mask,
    ) -> None:
        self._prompt_tokens = prompt_tokens
        self._grammar = grammar
        self._narrow = narrow
        self._prefix: list[int] = settings["prefix"]
        self._think_start: list[int] = settings["think_start"]
        self._think_end: list[int] = settings["think_end"]
        self._thinks: bool = settings["thinking"]
        self._tool: int | None = settings["tool"]
        self._end = sorted(end)
        self._matcher: LLMatcher | None = None
        self._consumed: list[int] = []
        """What the matcher has seen of the answer."""

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        reply: Any = tokens[self._prompt_tokens :].tolist()
        if reply and reply[-1] in self._end:
            return logits  # one token ahead of what is reported: nothing comes after this one
        at = self._answer(reply)
        if at is None:
            return logits.at[:, mx.array(self._end)].add(-mx.inf)
        if self._tool is not None and reply[at : at + 1] == [self._tool]:
            return logits
        if len(reply) == at and (opener := self._opener(at, logits)) is not None:
            return _only([opener], logits)
        return _allow(self.allowed(reply[at:]), logits)

    def _answer(self, reply: list[int]) -> int | None:
        """Where the answer begins in the reply; None while the model thinks."""
        thinks = self._thinks or (self._think_start and reply[:1] == self._think_start[:1])
        if not thinks:
            return 0
        first, size = self._think_end[0], len(self._think_end)
        at = 0
        while first in reply[at:]:
            at = reply.index(first, at)
            if reply[at : at + size] == self._think_end:
                return at + size
            at += 1
        return None

    def _opener(self, at: int, logits: mx.array) -> int | None:
        """Thinking and tool calls are the model's choice: its first token, if it is what it would say
        were there no grammar."""
        openers = [self._tool] if self._tool is not None else []
        if at == 0:
            openers += self._think_start[:1]
        if not openers:
            return None
        favourite: Any = mx.argmax(logits, axis=-1).item()
        return favourite if favourite in openers else None

    def allowed(self, answer: list[int]) -> bytes:
        """One bit a token, lowest first: what may follow these tokens of the answer. End tokens only where
        the grammar may end, and nothing else where it must."""
        matcher = self._at(answer)
        mask = matcher.compute_bitmask()
        # At its end it allows the end tokens alone and calls that stopped; without an answer it is stuck.
        if matcher.is_error() or (matcher.is_stopped() and not matcher.is_accepting()):
            raise EngineFailed(f"The format cannot be followed any further ({matcher.stop_reason()}).")
        return self._narrow(answer, mask)

    def _at(self, answer: list[int]) -> LLMatcher:
        if self._matcher is None:
            self._matcher = self._grammar.result().deep_copy()
            self._matcher.consume_tokens(self._prefix)
        same = len(self._consumed)
        if answer[:same] != self._consumed:
            pairs = zip(answer, self._consumed, strict=False)
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(answer))
            self._matcher.rollback(len(self._consumed) - same)
        new = answer[same:]
        taken = self._matcher.try_consume_tokens(new)
        self._consumed = answer[: same + taken]
        if taken < len(new):
            raise EngineFailed(f"Token {new[taken]} does not follow the format.")
        return self._matcher


def _only(tokens: list[int], logits: mx.array) -> mx.array:
    kept = mx.zeros(logits.shape[-1], dtype=mx.bool_)
    kept[mx.array(tokens)] = True
    return mx.where(kept, logits, -mx.inf)


def _allow(mask: bytes, logits: mx.array) -> mx.array:
    width = logits.shape[-1]
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:width]
    if not bits.any():
        raise EngineFailed("No token of this model follows the format here.")
    # A model may have more rows than its tokenizer has tokens: those are no tokens.
    kept = np.pad(bits, (0, width - len(bits))).astype(bool)
    return mx.where(mx.array(kept), logits, -mx.inf)


# ------------------------------------------------------------------------------------------ preparing


def settings(
    request: Request, prompt: Sequence[int], thinking: bool, tokenizer: Any, grammars: Grammars
) -> dict[str, Any]:
    """What `Constraint` needs, as plain data; the grammar is compiled by then. `prompt` are the prompt's
    tokens, which end inside a thought if `thinking`; `tokenizer` is mlx-lm's wrapper. Raises BadRequest
    naming the field."""
    assert request.format is not None
    if tokenizer.structural_markers or tokenizer.response_transitions or channels.known(tokenizer):
        raise BadRequest(
            "format is not offered for this model: its replies have channels of their own.", field="format"
        )
    grammar = grammars.compile(request.format)
    prefix: list[int] = []
    if request.continue_last and isinstance(text := request.messages[-1].content, str):
        prefix = grammars.tokens(text)
        if grammar.deep_copy().validate_tokens(prefix) < len(prefix):
            raise BadRequest("The beginning that is to be continued does not fit the format.", field="format")
    return {
        "format": dict(request.format),
        "prefix": prefix,
        "thinking": thinking,
        "think_start": list(tokenizer.think_start_tokens) if _may_think(request, prompt, tokenizer) else [],
        "think_end": list(tokenizer.think_end_tokens or ()),
        "tool": _tool_token(request, tokenizer, grammars),
    }


def _may_think(request: Request, prompt: Sequence[int], tokenizer: Any) -> bool:
    """May the reply begin with a thought? A template says no with one that is over already."""
    if not tokenizer.has_thinking or request.task != "chat" or request.continue_last:
        return False
    if request.reasoning in (False, "none"):
        return False
    at: int = tokenizer.rfind_think_end(list(prompt))
    rest = prompt[at + len(tokenizer.think_end_tokens) :]
    return at < 0 or bool(tokenizer.decode(list(rest)).strip())


def _tool_token(request: Request, tokenizer: Any, grammars: Grammars) -> int | None:
    """The token that begins a tool call, if it cannot be part of an answer."""
    tokens = tokenizer.tool_call_start_tokens
    if not request.tools or request.tool_choice == "none" or not tokens:
        return None
    return int(tokens[0]) if grammars.is_special(tokens[0]) else None
