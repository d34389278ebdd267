"""Speculative decoding: one pass over the pending token and some drafted ones, of which the agreeing stay.

Every token is still drawn from the model's own logits with the request's own sampler, at the same place and
with the same randomness as in plain decoding; a draft only decides how many of them one pass yields. The
idea is Leviathan, Kalman, Matias 2023, with "accepted" meaning "equal to what would have been drawn".

Knows mlx-lm's generator; knows no requests and not where drafts come from (lookup.py, draft.py).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from exo_mlx.batch import Batch, Generator
from exo_mlx.kv_budget import Footprint
from exo_mlx.sampling import Sampler

FIRST_DRAFT = 3
"""Tokens of a text's first draft: a pass of 4 rows costs what one of 1 does, where memory is the limit."""
LONGEST_REST = 32
"""Passes without a draft after several that were wholly wrong."""


class Drafter(Protocol):
    """Guesses the next tokens of one text, at most `limit` at a time. `footprint`: what a token more takes
    in caches of its own; `name` is for people."""

    name: str
    limit: int
    footprint: Footprint

    def follow(self, uid: int, tokens: Sequence[int]) -> None:
        """The text is now sequence `uid`'s, `tokens` long, with one more token to come: the pending one."""

    def ready(self, chunk: int, known: bool) -> bool:
        """Is a draft to be hoped for? Where the pending token is not `known` yet, a draft has to wait for
        it. May work towards the next time instead, at most over `chunk` tokens."""

    def draft(self, pending: int, count: int, sampler: Sampler, width: int) -> mx.array | None:
        """At most `count` token ids (n,) to come after `pending`, None = no idea. `sampler` is the
        request's; `width` is how many logits the model gives."""


class Pace:
    """How many tokens are worth drafting for a text, by how the drafts before fared."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._first = min(FIRST_DRAFT, limit)
        self._count = self._first
        self._missed = 0
        self._rest = 0

    def next(self) -> int:
        """Tokens for this pass; 0 = none, as the last drafts were wrong."""
        if self._rest:
            self._rest -= 1
            return 0
        return self._count

    def learn(self, drafted: int, accepted: int) -> None:
        if accepted == 0:
            self._missed += 1
            self._count = self._first
            self._rest = min(LONGEST_REST, (1 << self._missed) - 2)
            return
        self._missed = 0
        # One row more than tokens: widths of 4, 8, 16, for which matrix kernels are made.
        whole = accepted == drafted
        self._count = min(self._limit, 2 * self._count + 1) if whole else max(self._first, self._count // 2)


class SpeculativeBatch(Batch):
    """A batch that drafts while it holds one sequence: with several, they fill the pass themselves, and
    each would have to be cut back by another length."""

    drafter: Drafter
    chunk = 1
    _pace: Pace
    _uid = -1
    _known = False  # has the pending token been waited for? Else a plain pass overlaps with what follows

    def next(self) -> list[Any]:
        if not self.resting and len(self.uids) == 1 and (responses := self._speculate()):
            self._known = True
            return responses
        self._known = self.eager
        return super().next()

    def _speculate(self) -> list[Any]:
        """One pass with a draft; [] if there is none, and nothing has happened."""
        (uid,) = self.uids
        if uid != self._uid:
            self._uid, self._pace = uid, Pace(self.drafter.limit)
        # How many tokens may follow the first that this pass hands on.
        left = self.max_tokens[0] - self._num_tokens[0] - 1
        # The first token is handed on as soon as it is there. What a processor (a penalty, a grammar) does
        # to one row depends on the rows before it.
        if self._num_tokens[0] == 0 or left < 1 or any(self.logits_processors):
            return []
        count = min(self._pace.next(), left, undoable(self.prompt_cache) - 1)
        if count < 1:
            return []
        self.drafter.follow(uid, self.tokens[0])
        if not self.drafter.ready(self.chunk, self._known):
            return []
        pending: Any = self._next_tokens.item()
        if not self.eager and copy.copy(self._matchers[0]).advance(pending):
            return []  # it ends the text
        width = self._next_logprobs[0].shape[-1]
        drafted = self.drafter.draft(pending, count, self.samplers[0], width)
        return [] if drafted is None else self._verify(drafted)

    def _verify(self, drafted: mx.array) -> list[Any]:
        sampler: Sampler = self.samplers[0]
        inputs = mx.concatenate([self._next_tokens, drafted.astype(self._next_tokens.dtype)])
        logits = self.model(inputs[None], cache=self.prompt_cache)[0]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        drawn = sampler.ahead(logprobs)
        mx.eval(inputs, drawn, logprobs)
        given: Any = inputs.tolist()
        wanted: Any = drawn.tolist()
        agreed = 0
        while agreed < drafted.size and given[agreed + 1] == wanted[agreed]:
            agreed += 1
        self._pace.learn(drafted.size, agreed)
        handed, rows = given, [self._next_logprobs[0], *logprobs[:agreed]]
        if self.eager:  # the pending token is handed on already
            handed, rows = wanted, [*logprobs[: agreed + 1]]
        reasons: list[str | None] = []
        for token in handed[: agreed + 1]:
            reasons.append(self._reason(0, token))
            if reasons[-1] is not None:
                break
        count = len(reasons)
        for cache in self.prompt_cache:
            cache.trim(len(given) - count)
        self.tokens[0] += given[:count]
        sampler.advance(count)
        self._next_tokens = drawn[count - 1 : count]
        self._next_logprobs = [logprobs[count - 1]]
        responses = [self._response(0, *answer) for answer in zip(handed, rows, reasons, strict=False)]
        if reasons[-1] is not None:
            self.filter([])
        return responses


class SpeculativeGenerator(Generator):
    """Drafts come from `drafter`. One `next` may hand on several tokens of a sequence; those after the one
    at which the reader stops are in its KV: `cut` takes them out."""

    def __init__(self, model: Any, *, drafter: Drafter, **settings: Any) -> None:
        super().__init__(model, batch=SpeculativeBatch, **settings)
        self._generation_batch.drafter = drafter

    def next(self) -> tuple[list[Any], list[Any]]:
        self._generation_batch.chunk = self.prefill_step_size
        return super().next()


def undoable(caches: list[Any]) -> int:
    """How many tokens a pass may add to these KV caches so that it can be taken back; 0 = none.

    A recurrent state never can, a sliding window (or a chunk) only until it is full.
    """
    room = 1 << 31
    for cache in caches:
        if (parts := getattr(cache, "caches", None)) is not None:
            room = min(room, undoable(list(parts)))
        elif not cache.is_trimmable():
            return 0
        elif (bound := getattr(cache, "max_size", getattr(cache, "chunk_size", None))) is not None:
            held = cache.offset if isinstance(cache.offset, int) else cache.size()
            room = min(room, bound - 1 - held)
    return max(0, room)


def cut(caches: list[Any], tokens: list[int], length: int) -> None:
    """Take out of a sequence's KV and token list what goes beyond `length` tokens."""
    surplus = len(tokens) - length
    if surplus > 0:
        for cache in caches:
            cache.trim(surplus)
        del tokens[length:]
