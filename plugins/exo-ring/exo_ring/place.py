"""One rank's place in a ring that stands: how it talks to the others, which part of the model it loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from exocli import OpenContext

from exo_mlx import loader
from exo_ring import tensor
from exo_ring.agreement import Carrier
from exo_ring.collective import Collective
from exo_ring.formation import Ring
from exo_ring.link import Link
from exo_ring.pipeline import Stage


class Place:
    """`carrier` moves numbers and tokens; `samples` says whether this rank draws the tokens: the last
    stage of a pipeline, rank 0 under tensor parallelism."""

    def __init__(self, ring: Ring, context: OpenContext) -> None:
        self._ring = ring
        self._context = context
        self._share = ring.plan.shares[context.rank]
        self.pipelined = ring.plan.strategy == "pipeline"
        self._link = Link(ring.group, wire=getattr(mx, ring.plan.wire)) if self.pipelined else None
        self.carrier: Carrier = self._link or Collective(ring.group)
        self.samples = context.rank == (context.size - 1 if self.pipelined else 0)

    @property
    def neighbours(self) -> int:
        """Ranks on this machine, this one included."""
        return int(self._context.data["local_ranks"])

    def least(self, numbers: Sequence[int]) -> list[int]:
        """The smallest of each over all ranks, which wait here for one another."""
        with mx.stream(mx.default_stream(mx.default_device())):
            mine = mx.array([list(numbers)], dtype=mx.int64)
            found: Any = mx.distributed.all_gather(mine, group=self._ring.group).min(axis=0).tolist()
        return [int(number) for number in found]

    def load(self) -> loader.Loaded:
        """This rank's part alone; `Loaded.model` is a Stage or a sharded model. Raises what the loader
        raises."""
        options = self._context.options
        asks = self._context.rank == 0  # the one that prepares requests: the file need not be elsewhere
        return loader.load(
            self._ring.folder,
            cpu_dtype=options.cpu_dtype,
            progress=self._context.progress,
            force=options.force,
            cut=self._cut,
            chat_template=Path(options.chat_template) if options.chat_template and asks else None,
        )

    def _cut(self, model: Any, config: Mapping[str, Any]) -> Any:
        if self._link is not None:
            return Stage(model, config["model_type"], self._share.start, self._share.stop, self._link)
        return tensor.shard(model, self._ring.group, self._context.options.cpu_dtype)
