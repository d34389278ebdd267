"""A request that the ranks hold, as their parent sees it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from exocli.cancel import CancelToken
from exocli.errors import ExoError
from exocli.types import Event, Finished, Phase, Receipt, Usage


@dataclass
class Live:
    id: str
    cancel: CancelToken
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    phase: Phase = "prefill"
    processed: int = 0
    total: int = 0
    cached: int = 0
    tokens: int = 0
    finished: Finished | None = None
    left: set[int] = field(default_factory=set)
    cancel_sent: float | None = None

    @property
    def latency_ms(self) -> float:
        """Since the cancel was asked for."""
        asked = self.cancel.asked_at
        return round((time.monotonic() - asked) * 1000, 1) if asked is not None else 0.0

    def lost(self, error: ExoError, size: int) -> Finished:
        """How it ends when its ranks, `size` of them, are ended."""
        if self.finished is not None and self.finished.cancel is None:
            return self.finished  # its answer was whole before the rank was lost
        usage = Usage(prompt_tokens=self.total, cached_tokens=self.cached, completion_tokens=self.tokens)
        if self.cancel.cancelled:
            receipt = Receipt(
                phase=self.phase,
                processed=self.processed,
                total=self.total,
                kept_tokens=0,
                ranks=size,
                latency_ms=self.latency_ms,
                killed=True,
            )
            return Finished(id=self.id, reason="cancelled", usage=usage, cancel=receipt)
        return Finished(id=self.id, reason="error", usage=usage, error=error.to_dict())
