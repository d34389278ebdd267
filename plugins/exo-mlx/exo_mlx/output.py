"""What one request says: token ids in, events out. Text, thoughts, calls, the stop string that matched.

A token's way: text.py (characters) → markers.py (answer, thought or call) → here (calls without tags, stop
strings, logprobs). Every rank feeds its own the same tokens, so that all stop at the same one. Knows nothing
of batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from exocli import Event, Reasoning, Text, ToolCall

from exo_mlx import channels, tools
from exo_mlx.markers import Markers, Piece
from exo_mlx.text import StopBuffer, TextStream


class Output:
    """`stop` is the stop string that matched, `tokens` how many tokens were generated,
    `reasoning_tokens` how many of them were spent on thinking."""

    def __init__(self, id: str, tokenizer: Any, settings: Mapping[str, Any]) -> None:
        self._id = id
        offered, state, continuing = settings["tools"], settings["state"], settings["continuing"]
        self._text = TextStream(tokenizer.detokenizer, continuing)
        parser = channels.parse_call if channels.known(tokenizer) else tokenizer.tool_parser
        parse = tools.parser(parser, offered)
        self._markers = Markers(tokenizer, state, parse, answered=continuing)
        self._bare = tools.BareCalls(offered)
        self._stops = StopBuffer(settings["stop"])
        self._logprobs: list[dict[str, Any]] | None = None if settings["logprobs"] is None else []
        self._calls = 0
        self._events: list[Event] = []
        self.stop: str | None = None
        self.tokens = 0
        self.reasoning_tokens = 0

    def feed(self, token: int, logprob: dict[str, Any] | None = None) -> list[Event]:
        """One more token, with its entry of logprobs where they are asked for. Once `stop` is set the
        request is over: no more is to be fed."""
        self.tokens += 1
        before = self._markers.state
        text = self._text.feed(token)
        pieces = self._markers.feed(text)
        kinds = {kind for kind, _ in pieces}
        thinks = "reasoning" in (before, self._markers.state)
        self.reasoning_tokens += thinks
        # A token of the answer: some of it is said, or all of it waits for the next one.
        waits = not thinks and (not text or self._markers.holding)
        if "text" in kinds:
            self._note(logprob)
            self._take(pieces)
        else:
            self._take(pieces)
            self._note(logprob if waits else None)
        return self._give()

    def finish(self, reason: Any) -> tuple[list[Event], Any]:
        """No more tokens, for `reason` → the last events, and the reason as it is told. Call it once."""
        if self.stop is None:
            self._take(self._markers.feed(self._text.finish()))
            self._take(self._markers.finish(reason))
            calls, rest = self._bare.finish() if reason == "stop" else ([], self._bare.release())
            if calls:
                self._call(calls)
            self._answer(rest)
        if self.stop is None:
            self._say(self._stops.flush())
        if self._logprobs:
            self._say("", last=True)
        if reason in ("cancelled", "error"):
            self.stop = None
        if self.stop is not None:
            reason = "stop"
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        return self._give(), reason

    def _give(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _take(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if self.stop is not None:
                return
            if piece[0] == "text":
                self._answer(self._bare.feed(piece[1]))
            elif piece[0] == "reasoning":
                self._forget()
                self._events.append(Reasoning(id=self._id, text=piece[1]))
            else:
                self._call(piece[1])

    def _answer(self, text: str) -> None:
        """Stop strings are for the answer alone."""
        if text and self.stop is None:
            shown, self.stop = self._stops.feed(text)
            self._say(shown)

    def _call(self, calls: list[tools.Call]) -> None:
        """Calls; none while one begins, of which no stop string can be a part."""
        held = self._bare.release()
        if not held.isspace():
            self._answer(held)
        self._say(self._stops.flush())
        if calls:
            self._forget()
        for call in calls:
            self._events.append(
                ToolCall(
                    id=self._id, index=self._calls, call_id=call.id, name=call.name, arguments=call.arguments
                )
            )
            self._calls += 1

    def _say(self, text: str, last: bool = False) -> None:
        """Text with the logprobs of the tokens since the text before it."""
        if text or last:
            known = None if self._logprobs is None else list(self._logprobs)
            self._events.append(Text(id=self._id, text=text, logprobs=known))
            self._forget()

    def _note(self, logprob: dict[str, Any] | None) -> None:
        if self._logprobs is not None and logprob is not None:
            self._logprobs.append(logprob)

    def _forget(self) -> None:
        if self._logprobs:
            self._logprobs.clear()
