"""How long steps take, and the prefill chunk for which a cancel takes effect within a target. Pure."""

from __future__ import annotations

from exocli.engine import WARM_UP_CHUNK

LARGEST = 2048


class ChunkTuner:
    """Tokens a step over all prompts together: powers of two between 32 and 2048, starting small.

    A step may take `target_s / (lead + 1)`: with pipelined ranks a cancel waits for every step under way.
    """

    def __init__(self, target_s: float, lead: int = 0) -> None:
        self._budget = target_s / (lead + 1)
        self._per_token: float | None = None
        self.chunk = WARM_UP_CHUNK

    def start(self, warm_up_s: float | None) -> int:
        """First choice, from what the warm-up's chunk took."""
        if warm_up_s:
            self._per_token = warm_up_s / WARM_UP_CHUNK
            self.chunk = self._fitting(self._per_token)
        return self.chunk

    def observe(self, tokens: int, seconds: float) -> int | None:
        """A step that prefilled `tokens` took `seconds`; the new chunk if it should change."""
        if tokens < self.chunk // 2 or seconds <= 0:
            return None  # the rest of a prompt says little about a whole chunk
        measured = seconds / tokens
        old = self._per_token
        self._per_token = measured if old is None else 0.7 * old + 0.3 * measured
        fitting = self._fitting(self._per_token)
        # Hysteresis: up only with room to spare, so that noise does not make the size swing.
        if fitting > self.chunk and self._fitting(self._per_token * 1.25) > self.chunk:
            self.chunk *= 2
        elif fitting < self.chunk and self._fitting(self._per_token * 0.85) < self.chunk:
            self.chunk //= 2
        else:
            return None
        return self.chunk

    def _fitting(self, per_token: float) -> int:
        chunk = WARM_UP_CHUNK
        while chunk < LARGEST and 2 * chunk * per_token <= self._budget:
            chunk *= 2
        return chunk


class Pace:
    """The usual time of a step over all ranks, in seconds, and the chunk that follows from it."""

    def __init__(self, target_s: float, ranks: int) -> None:
        self.tuner = ChunkTuner(target_s)
        self.usual = 0.0
        self._target_s = target_s
        self._ranks = ranks
        self._times: dict[int, list[float]] = {}

    def start(self, warm_up_s: float, lead: int) -> int:
        """The first chunk, from the warm-up of the slowest rank."""
        self.tuner = ChunkTuner(self._target_s, lead)
        self.usual = warm_up_s
        return self.tuner.start(warm_up_s)

    def observe(self, step: int, seconds: float, tokens: int) -> int | None:
        """One rank's time for a step; the new chunk if it should change. The slowest rank's time counts."""
        times = self._times.setdefault(step, [])
        times.append(seconds)
        if len(times) < self._ranks:
            return None
        del self._times[step]
        slowest = max(times)
        self.usual = 0.9 * self.usual + 0.1 * slowest if self.usual else slowest
        return self.tuner.observe(tokens, slowest) if tokens else None
