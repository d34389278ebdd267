"""What a backend's `open` gives: an engine that the core steps, or one that streams by itself.

Base classes alone. The runtime drives them, in a worker or inline; they know nothing of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exocli.backend import Capabilities, ProgressFn
from exocli.cancel import CancelToken
from exocli.types import JSON, Event, Prepared, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenContext:
    """What an engine is opened with.

    `model` is the local path (or the name, for a backend without a model source); `options` an
    instance of `open_options`; `defaults` the config's sampling for this model; `cache_dir` a folder
    of the backend's own; `log(text)` goes to the worker's log; `progress(done, total)` while loading;
    `ask(command)` appends a command of the engine's own to the log, which then reaches `apply` on
    every rank at the same step; `data` is the rank's `WorkerSpec.data`.
    """

    backend: str
    model: str
    options: Any
    rank: int = 0
    size: int = 1
    cache_dir: Path
    defaults: Mapping[str, JSON] = field(default_factory=dict)
    data: Mapping[str, JSON] = field(default_factory=dict)
    log: Callable[[str], None]
    progress: ProgressFn
    ask: Callable[[Mapping[str, JSON]], None]
    cancel: CancelToken


WARM_UP_CHUNK = 32
"""Tokens of the warm-up's prefill chunk, and the smallest chunk that tuning chooses."""


class EngineBase:
    """`capabilities` narrows the spec's upper bound to what this model can do."""

    capabilities: Capabilities = Capabilities()

    def describe(self) -> Mapping[str, JSON]:
        """Plain facts for `ps`, `-v` and the web page (layers, dtype, memory …)."""
        return {}


class StepEngine(EngineBase, ABC):
    """An engine that the core drives, one boundary at a time; every rank runs the same calls.

    All calls but `prepare` come from one thread, the one that opened the engine.
    """

    max_lead: int | None = None
    """How many steps rank 0, which leads, may be ahead of the last rank; None = no bound (one rank)."""

    @abstractmethod
    def prepare(self, request: Request) -> Prepared:
        """Template, tokenize, validate, count, draw the seed. On a side thread of rank 0, one request after
        the other, but for one that takes seconds: the next go on beside it, and after a minute it has failed.
        Raises BadRequest: then nothing has happened."""

    @abstractmethod
    def submit(self, prepared: Prepared, cancel: CancelToken) -> None:
        """Take the request into the batch at the next step. An error fails this request alone."""

    @abstractmethod
    def step(self) -> Sequence[Event]:
        """At most one prefill chunk and one decode token for every live request; of an `embed` at most
        a bounded batch of its texts, a Progress and an Embedding for each. Look at each
        request's cancel token first: drop the cancelled ones, keep their KV, and answer
        `Finished("cancelled")` with phase, processed, total and kept_tokens. Exactly one Finished a
        request, in the same step on every rank. An exception here ends the worker."""

    @abstractmethod
    def close(self) -> None: ...

    def agree(self, received: int) -> int:
        """The number of the last command that this step applies, the same on every rank."""
        return received

    def tune(self, chunk: int) -> None:
        """Prefill at most `chunk` tokens a step, over all prompts together."""

    def apply(self, command: Mapping[str, JSON]) -> None:
        """A command that `OpenContext.ask` put into the log."""

    def warm_up(self) -> float | None:
        """Run one small chunk and one token; seconds the chunk took and None if there is no such thing.
        Its size is WARM_UP_CHUNK tokens."""
        return None

    def last_step(self) -> Mapping[str, JSON]:
        """About the step just made, for the chunk tuner: {"prefill_tokens": n, "decoded": m}."""
        return {}


class StreamEngine(EngineBase, ABC):
    """An engine that produces a request's events by itself (a client of a server, a callback API).

    `stream` ends with exactly one Finished; on cancel it stops soon and finishes "cancelled".
    """

    @abstractmethod
    def stream(self, request: Request, cancel: CancelToken) -> AsyncIterator[Event]: ...

    async def count_tokens(self, request: Request) -> int | None:
        return None

    async def aclose(self) -> None:
        return None
