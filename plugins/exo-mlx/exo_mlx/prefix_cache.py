"""Which KV caches are kept, and which of them serves a prompt.

Rank 0 alone decides, with token ids and counts (PrefixIndex, on mlx-lm's LRUPromptCache); what it decides
travels in the log (`reuse` of a submit, an `evict` command). Every rank keeps its own share of the KV
under the same entry names (KeptCaches) and only does as the log says.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import LRUPromptCache, trim_prompt_cache


class _Handle:
    """Stands for a KV cache in the LRU: a name and a number of tokens. LRUPromptCache counts bytes, we
    give it tokens: each rank's bytes differ with its share of the layers, tokens do not."""

    def __init__(self, entry: str, tokens: int, trimmable: bool) -> None:
        self.entry = entry
        self.size = tokens
        self.tokens = tokens
        self._trimmable = trimmable

    @property
    def nbytes(self) -> int:
        return self.tokens

    def is_trimmable(self) -> bool:
        return self._trimmable

    def trim(self, count: int) -> int:
        self.tokens -= count
        return count


class PrefixIndex:
    """Bounded by entries and by tokens over all entries. Thread-safe: lookups come from `prepare`'s
    thread, additions from the step's."""

    def __init__(self, max_entries: int, max_tokens: int) -> None:
        self._lru = LRUPromptCache(max_size=max(1, max_entries), max_bytes=max_tokens)
        self._max_tokens = max_tokens if max_entries > 0 else 0
        self._lock = threading.Lock()
        self._gone: list[str] = []

    def lookup(self, tokens: Sequence[int]) -> Mapping[str, Any] | None:
        """{"entry", "tokens", "trim"}: the kept cache with the longest common prefix, how many of its
        tokens serve (at most len(tokens) - 1: the last token's logits have to be computed) and how many
        of its end do not."""
        # Second without the last token: an entry of the whole prompt hides a shorter one, which serves
        # where the whole cannot be trimmed.
        for asked in (list(tokens), list(tokens[:-1])):
            with self._lock:
                found, _ = self._lru.fetch_nearest_cache("", asked)
            if not found:
                return None
            handle: _Handle = found[0]
            usable = min(handle.tokens, len(tokens) - 1)
            if usable > 0 and (usable == handle.tokens or handle.is_trimmable()):
                return {"entry": handle.entry, "tokens": usable, "trim": handle.size - usable}
        return None

    def holds(self, count: int) -> bool:
        """Could an entry of so many tokens be kept at all? The same on every rank."""
        return 0 < count <= self._max_tokens

    def add(self, entry: str, tokens: Sequence[int], trimmable: bool) -> tuple[bool, list[str]]:
        """→ (whether `entry` is kept, the entries that are to be evicted, `entry` itself if it is not)."""
        if not self.holds(len(tokens)):
            return False, [entry]
        with self._lock:
            handle = _Handle(entry, len(tokens), trimmable)
            # The LRU drops entries in several places and tells nobody; the last reference tells us.
            weakref.finalize(handle, self._gone.append, entry).atexit = False
            self._lru.insert_cache("", list(tokens), [handle])
            del handle
            gone, self._gone[:] = list(self._gone), []
        return entry not in gone, gone


class KeptCaches:
    """This rank's share of each kept KV cache, by entry name."""

    def __init__(self) -> None:
        self._caches: dict[str, list[Any]] = {}

    def __contains__(self, entry: str) -> bool:
        return entry in self._caches

    def put(self, entry: str, caches: list[Any]) -> None:
        # A cache taken out of a batch is a lazy slice that would keep the whole batch alive.
        mx.eval([cache.state for cache in caches])
        self._caches[entry] = caches

    def evict(self, entries: Iterable[str]) -> None:
        for entry in entries:
            self._caches.pop(entry, None)

    def take(self, reuse: Mapping[str, Any]) -> list[Any] | None:
        """A trimmed copy of what a submit's `reuse` names; None if it was evicted before that submit,
        which is so on every rank alike."""
        caches = self._caches.get(reuse["entry"])
        if caches is None:
            return None
        caches = copy.deepcopy(caches)
        if reuse["trim"]:
            trim_prompt_cache(caches, reuse["trim"])
        return caches
