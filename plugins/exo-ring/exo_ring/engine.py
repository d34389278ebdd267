"""The step engine of one rank: exo_mlx's, with a share of the model, agreement and shared tokens.

Every rank makes the same calls in the same order; what is decided is decided on one and told to the
others. A cancel's way: the leader reads it from its log, the next header tells every rank how far to read
theirs, all drop the request in the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
from exocli import EngineFailed, ExoError, OpenContext, Prepared

from exo_mlx import guard, loader
from exo_mlx.engine import MlxEngine
from exo_mlx.sampling import Settings
from exo_ring.agreement import Agreement, Carrier
from exo_ring.formation import Ring
from exo_ring.generator import RingGenerator, quiet_sampler
from exo_ring.pipeline import Stage
from exo_ring.place import Place


class RingEngine(MlxEngine):
    def __init__(self, context: OpenContext, ring: Ring) -> None:
        self._plan = ring.plan
        self._place = Place(ring, context)
        self._agreement = self.make_agreement(self._place.carrier)
        # Only who leads can lead too far: the socket's buffers would take dozens of chunks.
        self.max_lead = context.size if context.rank == 0 else None
        super().__init__(replace(context, model=str(ring.folder)))
        if context.rank == 0 or self._place.samples:
            self._preparer.grammars.warm()
        # Logprobs are where the sampling is, the text comes from rank 0.
        self.capabilities = replace(self.capabilities, logprobs=not self._place.pipelined)

    def make_agreement(self, carrier: Carrier) -> Agreement:
        """How ranks stay in step; figures.py measures what that costs."""
        return Agreement(carrier)

    def load(self, context: OpenContext) -> loader.Loaded:
        return self._place.load()

    def make_generator(self, model: Any, **settings: Any) -> RingGenerator:
        return RingGenerator(model, carrier=self._place.carrier, agreement=self._agreement, **settings)

    def sampler(self, settings: Settings) -> Any:
        return super().sampler(settings) if self._place.samples else quiet_sampler

    def processors(self, prepared: Prepared) -> guard.Guard | None:
        return super().processors(prepared) if self._place.samples else None

    def failure(self, live: Any, answer: Any) -> ExoError | None:
        error = super().failure(live, answer)
        if answer.uid not in self._generator.failed:
            return None
        return error or EngineFailed(
            "The request's own sampling failed on the rank that draws the tokens; its log says why."
        )

    def can_trim(self, caches: list[Any]) -> bool:
        model = self._loaded.model
        if not isinstance(model, Stage):
            return super().can_trim(caches)
        # A sliding window that is full cannot go back, on whichever rank it is.
        held = max((cache.offset for cache in caches), default=0)
        return model.narrowest is None or held < model.narrowest

    @property
    def trims_below(self) -> int | None:
        model = self._loaded.model
        return model.narrowest if isinstance(model, Stage) else super().trims_below

    def free(self) -> int | None:
        self._place.least([0])  # ranks that share a machine must all have their weights by now
        free = super().free()
        return None if free is None else free // self._place.neighbours

    def least(self, numbers: Sequence[int]) -> list[int]:
        return self._place.least(numbers)

    def agree(self, received: int) -> int:
        decodes = bool(self._live) and all(live.decoding for live in self._live.values())
        with mx.stream(self._stream):
            return self._agreement.agree(received, ahead=decodes)

    def _leave(self, live: Any) -> None:
        super()._leave(live)
        self._context.log(f"left {live.id} at step {self._agreement.step}")

    def describe(self) -> Mapping[str, Any]:
        return {
            **super().describe(),
            "strategy": self._plan.strategy,
            "why": self._plan.why,
            "split": [share.stop - share.start for share in self._plan.shares],
            "ranks": len(self._plan.shares),
            "layers": [self._plan.shares[self._rank].start, self._plan.shares[self._rank].stop],
            "wire": self._plan.wire,
        }
