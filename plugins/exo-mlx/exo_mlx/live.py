"""One request in the batch, from its submit to its Finished: how far it is, what it said, how it ended.

Knows no generator and no caches; engine.py moves it on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from exocli import CancelToken, Event, ExoError, Finished, Prepared, Progress, Receipt, Usage

from exo_mlx.guard import Guard
from exo_mlx.output import Output


@dataclass(kw_only=True)
class Live:
    """`uid` is the generator's name for it. Of the prompt's tokens `cached` were there before, `processed`
    are done, and after `keep_at` a copy of the caches is kept."""

    prepared: Prepared
    cancel: CancelToken
    uid: int
    output: Output
    guard: Guard | None
    cached: int
    processed: int
    keep_at: int
    decoding: bool = False

    @property
    def id(self) -> str:
        return self.prepared.id

    @property
    def entry(self) -> str:
        """What its KV is kept under, alike on every rank. An id may come back, one with a `uid` does not."""
        return f"{self.id}/{self.uid}"

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prepared.prompt_tokens,
            cached_tokens=self.cached,
            completion_tokens=self.output.tokens,
            reasoning_tokens=self.output.reasoning_tokens,
        )

    @property
    def progress(self) -> Progress:
        total = self.prepared.prompt_tokens
        return Progress(id=self.id, processed=self.processed, total=total, cached=self.cached)

    def receipt(self, kept: int) -> Receipt:
        """What its cancel did; `kept` tokens of KV outlive it."""
        return Receipt(
            phase="decode" if self.decoding else "prefill",
            processed=self.processed,
            total=self.prepared.prompt_tokens,
            kept_tokens=kept,
        )

    def finish(
        self, reason: Any, cancel: Receipt | None = None, error: ExoError | None = None
    ) -> list[Event]:
        """Its last events, Finished at the end. Call it once."""
        events, told = self.output.finish(reason)
        finished = Finished(
            id=self.id,
            reason=told,
            stop=self.output.stop,
            usage=self.usage,
            cancel=cancel,
            error=error.to_dict() if error else None,
        )
        return [*events, finished]
