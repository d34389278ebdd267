"""What one request says: token ids in, events out. Text in pieces, the stop string that matched, counts.

Every rank feeds its own the same tokens, so that all stop at the same one. Knows nothing of batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exocli import Event, Text

from exo_mlx.text import TextStream


class Output:
    """`stop` is the stop string that matched, `tokens` how many tokens were generated,
    `reasoning_tokens` how many of them were spent on thinking."""

    def __init__(self, id: str, tokenizer: Any, settings: Mapping[str, Any]) -> None:
        self._id = id
        self._text = TextStream(tokenizer.detokenizer, settings["stop"], continuing=settings["continuing"])
        self._logprobs: list[dict[str, Any]] | None = None if settings["logprobs"] is None else []
        self.stop: str | None = None
        self.tokens = 0
        self.reasoning_tokens = 0

    def feed(self, token: int, logprob: dict[str, Any] | None = None) -> list[Event]:
        """One more token, with its entry of logprobs where they are asked for. Once `stop` is set the
        request is over: no more is to be fed."""
        self.tokens += 1
        if self._logprobs is not None and logprob is not None:
            self._logprobs.append(logprob)
        text, self.stop = self._text.feed(token)
        return self._say(text)

    def finish(self, reason: Any) -> tuple[list[Event], Any]:
        """No more tokens, for `reason` → the last events, and the reason as it is told. Call it once."""
        text = ""
        if self.stop is None:
            text, self.stop = self._text.finish()
        if reason == "cancelled":
            self.stop = None
        return self._say(text, last=True), "stop" if self.stop is not None else reason

    def _say(self, text: str, last: bool = False) -> list[Event]:
        if not text and not (last and self._logprobs):
            return []
        logprobs = self._logprobs
        if logprobs is not None:
            self._logprobs = []
        return [Text(id=self._id, text=text, logprobs=logprobs)]
