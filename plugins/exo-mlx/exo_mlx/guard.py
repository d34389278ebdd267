"""A request's logits processors behind one that never raises.

An exception inside BatchGenerator's step leaves the whole batch inconsistent (measured), so what a
request asks for may fail that request alone: the draw is marked, and the engine ends the request when it
comes to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from exocli import EngineFailed, ExoError, Prepared

from exo_mlx import penalties
from exo_mlx.constraint import Constraint
from exo_mlx.grammar import Grammars
from exo_mlx.penalties import Processor


@dataclass(frozen=True, slots=True)
class Draw:
    """About one draw: why its processors failed, and the model's own logprobs (vocabulary,), if wanted."""

    error: ExoError | None
    logprobs: mx.array | None


class Guard:
    """A logits processor over `processors`, in their order. `logprobs`: remember the model's own ones, as
    they were before any processor.

    mlx-lm draws one token ahead of what it reports: `take` is called once for each reported token, in
    order, and answers for the draw that made it.
    """

    def __init__(self, processors: Sequence[Processor], *, logprobs: bool) -> None:
        self._processors = processors
        self._logprobs = logprobs
        self._draws: deque[Draw] = deque()
        self.failed = False
        """Since the first failure; what is drawn after it means nothing."""

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        error: ExoError | None = None
        raw = (logits - mx.logsumexp(logits, axis=-1, keepdims=True))[0] if self._logprobs else None
        if not self.failed:
            try:
                for processor in self._processors:
                    logits = processor(tokens, logits)
            except Exception as failure:  # whatever it is, it is this request's alone
                self.failed = True
                text = " ".join(str(failure).split())
                error = failure if isinstance(failure, ExoError) else _failed(failure, text)
        self._draws.append(Draw(error, raw))
        return logits

    def take(self) -> Draw:
        return self._draws.popleft()


def _failed(failure: Exception, text: str) -> EngineFailed:
    return EngineFailed(f"The request's own sampling failed: {type(failure).__name__}: {text}")


def wanted(prepared: Prepared) -> bool:
    """Has this request processors at all? The same answer on every rank."""
    settings = prepared.settings
    return settings["constraint"] is not None or penalties.active(settings["penalties"])


def make(prepared: Prepared, grammars: Grammars) -> Guard | None:
    """The processors that a request's settings ask for: bias, penalties, then the grammar, which has the
    last word."""
    if not wanted(prepared):
        return None
    settings = prepared.settings
    found = penalties.processors(settings["penalties"], prepared.prompt_tokens)
    if (constraint := settings["constraint"]) is not None:
        format = constraint["format"]
        narrow = {"narrow": grammars.end_number} if format["type"] in ("json_object", "json_schema") else {}
        grammar = grammars.start(format)
        found.append(Constraint(constraint, settings["end"], prepared.prompt_tokens, grammar, **narrow))
    return Guard(found, logprobs=settings["logprobs"] is not None)
