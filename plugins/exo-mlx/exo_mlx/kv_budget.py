"""How many tokens of KV cache fit into memory: for the requests that run, and for those kept for a resend.

Pure arithmetic, in bytes and tokens; knows no models and no operating system.
"""

from __future__ import annotations

from dataclasses import dataclass

RESERVE = 4
"""One part in so many of the free memory stays free: for the activations of a chunk, and for the moment in
which a batch is put together (measured with four unlike prompts: half as much again as the caches take)."""
KEPT = 4
"""At most one part in so many of the rest is for kept caches."""
SMALLEST = 512
"""Tokens that may run whatever the numbers say: they are estimates, and a model that was let in answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes that one request's caches take: `token` for every token (layers that grow), and `fixed` at the
    most for layers of a bounded size (sliding windows, recurrent states)."""

    token: int = 0
    fixed: int = 0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(token=self.token + other.token, fixed=self.fixed + other.fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """`running`: tokens that the running requests may reserve, None = memory is no bound. `kept_tokens`
    and `kept_entries` bound the kept caches."""

    running: int | None
    kept_tokens: int
    kept_entries: int


def divide(
    free: int | None, footprint: Footprint, *, requests: int, kept_tokens: int, kept_entries: int
) -> Budget:
    """Share `free` bytes (None = unknown) between `requests` at once and the kept caches, of which no more
    are wanted than `kept_tokens` and `kept_entries`."""
    if free is None:
        return Budget(running=None, kept_tokens=kept_tokens, kept_entries=kept_entries)
    usable = max(0, free - free // RESERVE)
    share = usable // KEPT
    if footprint.fixed:
        kept_entries = min(kept_entries, share // 2 // footprint.fixed)
    share -= kept_entries * footprint.fixed
    if footprint.token:
        kept_tokens = min(kept_tokens, share // footprint.token)
    if kept_entries == 0:
        kept_tokens = 0
    if not footprint.token:
        return Budget(running=None, kept_tokens=kept_tokens, kept_entries=kept_entries)
    kept = kept_entries * footprint.fixed + kept_tokens * footprint.token
    running = (usable - kept - requests * footprint.fixed) // footprint.token
    return Budget(running=max(running, SMALLEST), kept_tokens=kept_tokens, kept_entries=kept_entries)
