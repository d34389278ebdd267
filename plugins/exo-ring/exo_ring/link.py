"""The wire between stages: hidden states forward, token ids back to the first and on from there.

The only file that calls MLX's point-to-point functions. MLX's ring has no framing and no types: each
message here has exactly one receiver that knows its shape and dtype beforehand, and every message is
an evaluation of its own, so that the order of the calls is the order on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

Array = Any


class Link:
    """One rank's place in the pipeline. `wire` is the dtype of hidden states on the wire: fixed by the plan,
    the same on every rank. All calls from the engine's thread, under the stream of the generation."""

    def __init__(self, group: Any, *, wire: Any) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.sends_tokens = self.rank == self.size - 1
        self.in_turn = False
        self._group, self._wire = group, wire

    def send(self, hidden: Array) -> None:
        self._put(hidden.astype(self._wire), self.rank + 1)

    def receive(self, shape: tuple[int, ...]) -> Array:
        return self._take(shape, self._wire, self.rank - 1)

    def pass_numbers(self, numbers: Sequence[int] | None, count: int) -> Callable[[], list[int]]:
        """The first rank's `numbers` (count of them, 64 bits), on every rank. They go the way that the
        hidden states go, so the stages do not wait for each other. Passed on as they are, unseen."""
        if self.rank > 0:
            header: Array = self._take((count,), mx.int64, self.rank - 1)
        else:
            assert numbers is not None
            header = mx.array(list(numbers), dtype=mx.int64)
        if self.rank + 1 < self.size:
            self._put(header, self.rank + 1)
        wait: Callable[[], list[int]] = header.tolist
        return wait

    def share_tokens(self, ids: Array) -> Array:
        """The last rank's `ids` (token ids and marks), on every rank: last to first (they are neighbours in
        the ring), then onward. Lazy; nobody waits here."""
        last = self.size - 1
        if self.rank == last:
            self._put(ids.astype(mx.uint32), 0)
            return ids
        ids = self._take(ids.shape, mx.uint32, last if self.rank == 0 else self.rank - 1)
        if self.rank + 1 < last:
            self._put(ids, self.rank + 1)
        return ids

    def _put(self, array: Array, to: int) -> None:
        mx.async_eval(mx.distributed.send(array, to, group=self._group))  # type: ignore[no-untyped-call]

    def _take(self, shape: Sequence[int], dtype: Any, source: int) -> Array:
        array = mx.distributed.recv(shape, dtype, source, group=self._group)
        mx.async_eval(array)  # type: ignore[no-untyped-call]
        return array
