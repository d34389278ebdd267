"""OpenAI's stream → events: texts, reasoning, whole tool calls, progress, and one Finished. Pure.

Takes what parsers give (sse.py), raises the server's own errors. Where a server counts nothing, pieces of
text are counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from exocli import (
    Event,
    Finished,
    Progress,
    Reasoning,
    Receipt,
    Status,
    Text,
    ToolCall,
    UpstreamError,
    Usage,
    new_id,
)

from exo_remote import problems, sse

REASONS = ("stop", "length", "tool_calls", "content_filter")
_SAME: Mapping[str, str] = {"function_call": "tool_calls", "max_tokens": "length", "model_length": "length"}
_COUNTED = re.compile(r"keepalive (\d+)/(\d+)")
"""mlx-lm's server, after each chunk of the prompt."""


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""


class Reply:
    """What is known of one reply so far. `moved` counts signs of progress, those too that give no event;
    heartbeats are none."""

    def __init__(self, request_id: str, url: str) -> None:
        self.id = request_id
        self.url = url
        self.moved = 0
        self.said = False
        self.processed = self.total = self.cached = self.tokens = 0
        self._usage: Usage | None = None
        self._reason: str | None = None
        self._stop: str | None = None
        self._receipt: Receipt | None = None
        self._calls: dict[int, _Call] = {}
        self._done = False
        self._status: tuple[Any, ...] = ()

    @property
    def ending(self) -> bool:
        """It has said why it ends; usage may follow."""
        return self._reason is not None

    @property
    def done(self) -> bool:
        """The end marker was seen."""
        return self._done

    # ------------------------------------------------------------------------------- pieces in

    def on_item(self, item: sse.Event | sse.Comment) -> Iterator[Event]:
        """A chunk, or a whole reply where a server does not stream. Raises UpstreamError, BadRequest,
        ContextOverflow for an error in it, and UpstreamError for what makes no sense."""
        try:
            if isinstance(item, sse.Comment):
                yield from self._comment(item.text)
            elif item.data.strip() == "[DONE]":
                self._done = True
            else:
                yield from self.on_json(item.data, item.type)
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
            text = f"{self.url} sent a piece of a reply that makes no sense."
            raise UpstreamError(text, url=self.url) from None

    def on_json(self, text: str, kind: str = "message") -> Iterator[Event]:
        """Raises as `on_item`, and anything for data that has not its documented shape."""
        data = self.object_of(text, kind)
        if isinstance(progress := data.get("prompt_progress"), dict):
            yield from self._progress(progress, "processed", "total", "cache")
        if kind.endswith(".progress") or str(data.get("type", "")).endswith(".progress"):
            yield from self._share(str(data.get("type", kind)), data.get("progress"))
        if isinstance(usage := data.get("usage"), dict):
            self._usage = usage_of(usage)
        for choice in data.get("choices") or ():
            if isinstance(choice, dict) and not choice.get("index"):
                yield from self._choice(choice)
        self._exo(data.get("exo"))

    def object_of(self, text: str, kind: str = "message") -> dict[str, Any]:
        """The JSON object ({} for JSON of another kind). Raises the server's own error if it is one."""
        try:
            data = json.loads(text)
        except ValueError:
            said = f"{self.url} sent something that is not JSON: {problems.one_line(text[:80])}."
            raise UpstreamError(said, url=self.url) from None
        if not isinstance(data, dict):
            return {}
        if data.get("error") or kind == "error":
            raise problems.of_event(data.get("error") or data, self.url)
        return data

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[Event]:
        delta = choice.get("delta") or choice.get("message") or {}
        for field in ("reasoning_content", "reasoning"):  # some send it twice
            if isinstance(thought := delta.get(field), str) and thought:
                yield self._say(Reasoning(id=self.id, text=thought))
                break
        text = delta.get("content") if delta else choice.get("text")
        if isinstance(text, str) and text:
            yield self._say(Text(id=self.id, text=text, logprobs=logprobs_of(choice.get("logprobs"))))
        for position, call in enumerate(delta.get("tool_calls") or ()):
            self._fragment(call, position)
        if choice.get("finish_reason"):
            self._reason = str(choice["finish_reason"])
            self.moved += 1
            if isinstance(stop := choice.get("stop_reason"), str):  # vLLM: the string that matched
                self._stop = stop

    def _fragment(self, call: Mapping[str, Any], position: int) -> None:
        index = call.get("index")
        known = self._calls.setdefault(index if isinstance(index, int) else position, _Call())
        function = call.get("function") or {}
        known.id = str(call.get("id") or known.id)
        known.name = known.name or str(function.get("name") or "")
        arguments = function.get("arguments") or ""
        known.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments)
        self.moved += 1

    def _say(self, event: Text | Reasoning) -> Event:
        self.moved += 1
        self.tokens += 1
        self.said = True
        return event

    # ------------------------------------------------------------------------ before the first text

    def _comment(self, text: str) -> Iterator[Event]:
        if counted := _COUNTED.fullmatch(text.strip()):
            yield from self._progress({"n": int(counted[1]), "of": int(counted[2])}, "n", "of", "")
            return
        word, _, rest = text.partition(" ")
        if word not in ("prefill_progress", "loading", "queued"):
            return
        try:
            data = json.loads(rest)
        except ValueError:
            return
        if not isinstance(data, dict):
            return
        if word == "prefill_progress":
            yield from self._progress(data, "processed_tokens", "total_tokens", "cached_tokens")
        elif word == "loading":
            yield from self.status("loading", done=data.get("done"), total=data.get("total"))
        else:
            yield from self.status("queued", position=data.get("position"))

    def status(self, phase: Any, **facts: Any) -> Iterator[Event]:
        """Only if it is news."""
        now = (phase, *facts.values())
        if now != self._status:
            self._status = now
            self.moved += 1
            yield Status(id=self.id, phase=phase, **facts)

    def _progress(self, data: Mapping[str, Any], done: str, total: str, cached: str) -> Iterator[Event]:
        now = (count_of(data.get(done)), count_of(data.get(total)), count_of(data.get(cached)))
        if now == (self.processed, self.total, self.cached) or not now[1]:
            return
        self.processed, self.total, self.cached = now
        self.moved += 1
        yield Progress(id=self.id, processed=now[0], total=now[1], cached=now[2])

    def _share(self, kind: str, share: Any) -> Iterator[Event]:
        """LM Studio says how much, from 0 to 1, and never of how many tokens."""
        if isinstance(share, (int, float)):
            what = "loading the model" if kind.startswith("model_load") else "reading the prompt"
            phase = "loading" if kind.startswith("model_load") else "queued"
            yield from self.status(phase, text=f"{what}, {share:.0%}")

    def _exo(self, given: Any) -> None:
        """An exo server's receipt: someone cancelled the reply there."""
        if isinstance(given, Mapping) and isinstance(receipt := given.get("cancel"), Mapping):
            self._receipt = receipt_of(receipt)

    # ------------------------------------------------------------------------------------- the end

    def end(self) -> Iterator[Event]:
        """The stream has ended. Raises UpstreamError if it ended too early to be whole."""
        reason = self._reason
        if reason is None and not self._done:
            raise UpstreamError(f"{self.url} ended its reply before it was whole.", url=self.url)
        if reason == "error":
            raise UpstreamError(f"{self.url} ended its reply with an error.", url=self.url)
        yield from self.calls()
        yield self.finished(reason or "stop")

    def calls(self) -> Iterator[Event]:
        for index, (_, call) in enumerate(sorted(self._calls.items())):
            name, text = call.name, call.arguments or "{}"
            yield ToolCall(
                id=self.id, index=index, call_id=call.id or f"call_{new_id()}", name=name, arguments=text
            )

    def finished(self, reason: str) -> Finished:
        if self._receipt is not None:
            return Finished(id=self.id, reason="cancelled", usage=self.usage(), cancel=self._receipt)
        reason = _SAME.get(reason, reason)
        if self._calls and reason == "stop":
            reason = "tool_calls"
        known: Any = reason if reason in REASONS else "stop"
        return Finished(id=self.id, reason=known, stop=self._stop, usage=self.usage())

    def usage(self) -> Usage:
        if self._usage is not None:
            return self._usage
        return Usage(prompt_tokens=self.total, cached_tokens=self.cached, completion_tokens=self.tokens)


def usage_of(data: Mapping[str, Any]) -> Usage:
    read = data.get("prompt_tokens_details") or {}
    written = data.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=count_of(data.get("prompt_tokens")),
        cached_tokens=count_of(read.get("cached_tokens")),
        completion_tokens=count_of(data.get("completion_tokens")),
        reasoning_tokens=count_of(written.get("reasoning_tokens")),
    )


def receipt_of(data: Mapping[str, Any]) -> Receipt:
    """What an exo server said of a cancel, its words kept; Receipt's defaults where it is silent."""
    known = {f.name for f in fields(Receipt)}
    given = {key: value for key, value in data.items() if key in known}
    return Receipt(**{"phase": "decode", **given})


def logprobs_of(data: Any) -> list[dict[str, Any]] | None:
    """Chat's form, or Completions' older one, → ours."""
    if not isinstance(data, Mapping):
        return None
    if isinstance(content := data.get("content"), list):
        return [{**_logprob(entry), "top": _top(entry.get("top_logprobs"))} for entry in content]
    tokens, values = data.get("tokens") or (), data.get("token_logprobs") or ()
    tops = data.get("top_logprobs") or [{}] * len(tokens)
    return [
        {"token": token, "id": None, "logprob": value, "top": [[t, None, v] for t, v in (top or {}).items()]}
        for token, value, top in zip(tokens, values, tops, strict=False)
    ] or None


def _logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The token's id is there where a server adds it; OpenAI's form has none."""
    return {
        "token": entry.get("token", ""),
        "id": entry.get("id", entry.get("token_id")),
        "logprob": entry.get("logprob"),
    }


def _top(entries: Any) -> list[list[Any]]:
    return [list(_logprob(entry).values()) for entry in entries or ()]


def count_of(value: Any) -> int:
    """Of tokens; 0 for what is no count."""
    return value if isinstance(value, int) and value > 0 else 0
