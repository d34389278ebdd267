"""Drafts from a second, smaller model with the same vocabulary, or by looking the text's end up in itself.

One draft KV cache serves whatever text is being drafted for: what it shares with the text before stays. So a
draft model costs one KV cache at most, and a request that comes back finds its KV without a record of it.
Knows the models and tokens; knows no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
from exocli import ModelNotFound, UsageError, choose
from mlx_lm.models.cache import trim_prompt_cache

from exo_mlx import models
from exo_mlx.caches import Caches
from exo_mlx.kv_budget import Footprint
from exo_mlx.loader import Loaded
from exo_mlx.lookup import Lookup
from exo_mlx.options import LocalOptions, Options
from exo_mlx.sampling import Sampler
from exo_mlx.speculative import Drafter

LOOKED_UP, DRAFTED = 15, 4
"""Tokens at a time: looking up costs nothing; each token of a draft model is a pass of its own."""
CATCH_UP = 16
"""Tokens that the draft model may lack and still draft in this step."""

Load = Callable[..., Loaded]


def open_drafter(
    options: Options, target: Loaded, trims_below: int | None, backend: str, load: Load
) -> Drafter | None:
    """What the options ask for, None = nothing. `trims_below`: see Caches; `load(path)` loads a model.

    Raises UsageError where it cannot serve `target`, and for the draft model what naming and loading raise.
    """
    if not isinstance(options, LocalOptions) or (options.speculate == "off" and options.draft is None):
        return None  # a ring's are not: its ranks feed each other one token at a time
    if trims_below == 0:
        option = "speculate" if options.draft is None else "draft"
        raise UsageError(
            f"{target.path.name} has recurrent or chunked layers, whose state cannot be taken back to drop a "
            f"wrong draft: leave out the option {option}."
        )
    if options.draft is None:
        return LookupDrafter(options.speculate_tokens or LOOKED_UP)
    draft = load(find(options.draft, backend))
    check(draft, target)
    return ModelDrafter(draft, options.speculate_tokens or DRAFTED)


def find(name: str, backend: str) -> Any:
    """The path of the draft model, named as `-m` names one. Raises ModelNotFound."""
    ref = choose(name, backend).ref
    path = models.source().locate(ref)
    if path is None:
        raise ModelNotFound(
            f'The draft model {ref} is not on this machine: "exo models pull {ref}" fetches it.'
        )
    return path


def check(draft: Loaded, target: Loaded) -> None:
    """Raises UsageError if `draft` cannot draft for `target`."""
    if draft.tokenizer.get_vocab() != target.tokenizer.get_vocab():
        raise UsageError(
            f"The draft model {draft.path.name} has another vocabulary than {target.path.name}: choose one "
            "of the same family."
        )
    if Caches(draft.model, draft.path.name).trims_below is not None:
        raise UsageError(
            f"The draft model {draft.path.name} has layers that do not keep the whole text (recurrent, or "
            "with a sliding window): choose one with full attention."
        )


def beside(target: Loaded, drafter: Drafter | None, trims_below: int | None) -> Loaded:
    """`target` with a draft model's weights beside it counted in, and what a person should know of both."""
    if drafter is not None and trims_below is not None:
        note = f"Drafts end at {trims_below} tokens: the window is full."
        target = replace(target, notes=(*target.notes, note))
    if not isinstance(drafter, ModelDrafter):
        return target
    draft = drafter.loaded
    return replace(target, nbytes=target.nbytes + draft.nbytes, notes=(*target.notes, *draft.notes))


class LookupDrafter:
    """Drafts are what followed the text's end where it occurred before in the text."""

    name = "lookup"
    footprint = Footprint()

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._uid = -1
        self._lookup = Lookup()

    def follow(self, uid: int, tokens: Sequence[int]) -> None:
        if uid != self._uid:
            self._uid, self._lookup = uid, Lookup()
        self._lookup.follow(tokens)

    def ready(self, chunk: int, known: bool) -> bool:
        return known or self._lookup.repeats()

    def draft(self, pending: int, count: int, sampler: Sampler, width: int) -> mx.array | None:
        found = self._lookup.guess(pending, count)
        return mx.array(found, mx.uint32) if found else None


class ModelDrafter:
    """Drafts are what the draft model draws, with the randomness that the target's draws will have: where
    the two agree on the probabilities they then mostly agree on the token."""

    def __init__(self, loaded: Loaded, limit: int) -> None:
        self.name = f"draft {loaded.path.name}"
        self.loaded = loaded
        self.limit = limit
        caches = Caches(loaded.model, loaded.path.name)
        self.footprint = caches.footprint
        self._caches = caches.make()
        self._held: list[int] = []  # the tokens of the draft's KV
        self._drawn: mx.array | None = None  # more of them, which nobody has waited for yet
        self._uid = -1
        self._sure = 0  # how many of them are known to be the text's
        self._lacking: list[int] = []

    def follow(self, uid: int, tokens: Sequence[int]) -> None:
        held = self._held
        if self._drawn is not None:
            drawn: Any = self._drawn.tolist()
            held += drawn
            self._drawn = None
        agreed = self._sure if uid == self._uid else 0
        while agreed < min(len(held), len(tokens)) and held[agreed] == tokens[agreed]:
            agreed += 1
        trim_prompt_cache(self._caches, len(held) - agreed)
        del held[agreed:]
        self._uid, self._sure = uid, agreed
        self._lacking = list(tokens[agreed:])

    def ready(self, chunk: int, known: bool) -> bool:
        """Catches up by a chunk if it lacks much: after a prompt, after a time with several requests."""
        context = self.loaded.context
        if context is not None and len(self._held) + len(self._lacking) + self.limit >= context:
            self._lacking = []
            return False
        if len(self._lacking) > CATCH_UP:
            part, self._lacking = self._lacking[:chunk], self._lacking[chunk:]
            self._feed(mx.array(part))
            self._held += part
            self._sure = len(self._held)
            mx.eval([cache.state for cache in self._caches])
        return len(self._lacking) <= CATCH_UP

    def draft(self, pending: int, count: int, sampler: Sampler, width: int) -> mx.array | None:
        given = [*self._lacking, pending]
        drawn: list[mx.array] = []
        inputs = mx.array(given)
        for place in range(count):
            row = _as_wide(self._feed(inputs), width)
            inputs = sampler.ahead(row - mx.logsumexp(row, axis=-1, keepdims=True), place)
            drawn.append(inputs)
        drafted = mx.concatenate(drawn)
        self._held += given
        self._drawn = drafted[:-1]
        return drafted

    def _feed(self, tokens: mx.array) -> mx.array:
        """→ the logits (1, vocabulary) after the last of `tokens`."""
        logits: mx.array = self.loaded.model(tokens[None], cache=self._caches)
        return logits[:, -1, :]


def _as_wide(row: mx.array, width: int) -> mx.array:
    """Models of one family pad their vocabulary to different sizes."""
    if row.shape[-1] >= width:
        return row[:, :width]
    return mx.pad(row, [(0, 0), (0, width - row.shape[-1])], constant_values=-float("inf"))
