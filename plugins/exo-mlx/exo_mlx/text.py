"""Tokens to text: characters that arrive in pieces, and stop strings that span tokens.

Pure but for the tokenizer's detokenizer; the same tokens give the same pieces on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopBuffer:
    """Passes text on, but holds back an end that may become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """→ (what may be shown now, the stop string that matched). The earliest match wins, and of
        several at one place the longest; nothing of it, nor anything after it, is ever shown."""
        self._held += text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, _, stop = min(found)
            shown, self._held = self._held[:at], ""
            return shown, stop
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, None

    def flush(self) -> str:
        """What was held back, once no more is to come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


class TextStream:
    """One request's detokenizer.

    `continuing`: the text goes on from an earlier one, so its leading space belongs to it (mlx-lm's
    detokenizers drop a space at the very beginning).
    """

    def __init__(self, detokenizer: Any, continuing: bool = False) -> None:
        self._detokenizer = detokenizer
        self._detokenizer.reset()
        if continuing and isinstance(getattr(detokenizer, "text", None), str) and "text" in vars(detokenizer):
            detokenizer.text, detokenizer.offset = "…", 1

    def feed(self, token: int) -> str:
        """The text that is sure now."""
        self._detokenizer.add_token(token)
        return str(self._detokenizer.last_segment)

    def finish(self) -> str:
        """The rest: half characters, as U+FFFD."""
        self._detokenizer.finalize()
        return str(self._detokenizer.last_segment)
