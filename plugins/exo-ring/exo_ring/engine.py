"""The step engine of one rank: exo_mlx's, with a share of the model, agreement and shared tokens.

Every rank makes the same calls in the same order; what is decided is decided on one and told to the
others. A cancel: the leader reads it from its log, the next header tells every rank, all drop it in the
same step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx
from exocli import OpenContext

from exo_mlx import loader
from exo_mlx.engine import MlxEngine
from exo_mlx.sampling import Settings
from exo_ring import formation, tensor
from exo_ring.agreement import Agreement, Carrier
from exo_ring.generator import RingGenerator, quiet_sampler
from exo_ring.link import Link
from exo_ring.pipeline import Stage


class RingEngine(MlxEngine):
    def __init__(self, context: OpenContext) -> None:
        self._ring = ring = formation.form(context)
        self._share = ring.plan.shares[context.rank]
        pipelined = ring.plan.strategy == "pipeline"
        self._carrier: Carrier = (
            Link(ring.group, wire=getattr(mx, ring.plan.wire)) if pipelined else tensor.Collective(ring.group)
        )
        self._samples = context.rank == (context.size - 1 if pipelined else 0)
        self._agreement = Agreement(self._carrier)
        self.max_lead = context.size if context.rank == 0 else None
        super().__init__(replace(context, model=str(ring.folder)))
        # Logprobs are where the sampling is, text where rank 0 is.
        self.capabilities = replace(self.capabilities, logprobs=not pipelined)

    def load(self, context: OpenContext) -> loader.Loaded:
        return loader.load(
            self._ring.folder,
            cpu_dtype=context.options.cpu_dtype,
            progress=context.progress,
            force=context.options.force,
            cut=self._cut,
        )

    def _cut(self, model: Any, config: Mapping[str, Any]) -> Any:
        """This rank's share of a model whose weights are still on disk."""
        if isinstance(self._carrier, Link):
            return Stage(model, self._ring.kind, self._share.start, self._share.stop, self._carrier)
        return tensor.shard(model, self._ring.group, self._options.cpu_dtype)

    def make_generator(self, model: Any, **settings: Any) -> RingGenerator:
        return RingGenerator(model, carrier=self._carrier, agreement=self._agreement, **settings)

    def sampler(self, settings: Settings, vocabulary: int) -> Any:
        return super().sampler(settings, vocabulary) if self._samples else quiet_sampler

    def can_trim(self, caches: list[Any]) -> bool:
        model = self._loaded.model
        if not isinstance(model, Stage):
            return super().can_trim(caches)
        # A sliding window that is full cannot go back, on whichever rank it is.
        held = max((cache.offset for cache in caches), default=0)
        return model.narrowest is None or held < model.narrowest

    def agree(self, received: int) -> int:
        with mx.stream(self._stream):
            return self._agreement.agree(received)

    def _leave(self, live: Any) -> None:
        super()._leave(live)
        self._context.log(f"left {live.id} at step {self._agreement.step}")

    def describe(self) -> Mapping[str, Any]:
        plan = self._ring.plan
        return {
            **super().describe(),
            "strategy": plan.strategy,
            "why": plan.why,
            "split": [share.stop - share.start for share in plan.shares],
            "ranks": len(plan.shares),
            "wire": plan.wire,
        }
