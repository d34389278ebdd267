"""Anthropic's Messages: events → its typed stream and its message.

Shapes: the Anthropic API reference, "Streaming Messages".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exocli.errors import ExoError
from exocli.server import convert
from exocli.server.problems import body_of
from exocli.server.streaming import Collected, Reply, sse
from exocli.types import Event, Finished, Progress, Reasoning, Started, Text, ToolCall, Usage

STOP_REASON = {
    "stop": "end_turn",
    "length": "max_tokens",
    "cancelled": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


def usage(of: Usage) -> dict[str, Any]:
    return {
        "input_tokens": of.prompt_tokens - of.cached_tokens,
        "cache_read_input_tokens": of.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": of.completion_tokens,
    }


def _reason(finished: Finished) -> dict[str, Any]:
    matched = finished.reason == "stop" and finished.stop is not None
    reason = "stop_sequence" if matched else STOP_REASON.get(finished.reason, "end_turn")
    return {"stop_reason": reason, "stop_sequence": finished.stop if matched else None}


class MessagesReply(Reply):
    api = "anthropic"
    _index = -1
    _open: str | None = None

    def on(self, event: Event) -> Iterator[bytes]:
        match event:
            case Started():
                start = {**self._message([]), "usage": usage(Usage(prompt_tokens=self.running.total))}
                yield self._event("message_start", message=start)
            case Text(text=text):
                yield from self._block("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text=text):
                yield from self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case ToolCall():
                yield from self._close()
                yield from self._block("tool_use", {**_tool_use(event), "input": {}})
                yield self._delta({"type": "input_json_delta", "partial_json": event.arguments})
            case Finished():
                yield from self._close()
                yield self._event(
                    "message_delta", delta=_reason(event), usage=usage(event.usage), **self.receipt(event)
                )
                yield self._event("message_stop")

    def progress(self, event: Progress) -> Iterator[bytes]:
        yield self._event("ping", prompt_progress=self.prompt_progress(event))

    def keepalive(self) -> bytes:
        return self._event("ping")

    def failed(self, error: ExoError) -> Iterator[bytes]:
        yield sse(body_of(error, self.api, self.running.id), "error")

    def _event(self, kind: str, **data: Any) -> bytes:
        return sse({"type": kind, **data}, kind)

    def _block(self, kind: str, start: dict[str, Any]) -> Iterator[bytes]:
        if self._open == kind:
            return
        yield from self._close()
        self._index += 1
        self._open = kind
        yield self._event("content_block_start", index=self._index, content_block=start)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield self._event("content_block_stop", index=self._index)

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self.running.id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def whole(self, collected: Collected) -> dict[str, Any]:
        finished = collected.finished
        content: list[dict[str, Any]] = []
        if collected.reasoning:
            content.append({"type": "thinking", "thinking": "".join(collected.reasoning), "signature": ""})
        if collected.text or not collected.calls:
            content.append({"type": "text", "text": "".join(collected.text)})
        content += [{**_tool_use(c), "input": convert.arguments_of(c.arguments)} for c in collected.calls]
        return {
            **self._message(content),
            **_reason(finished),
            "usage": usage(finished.usage),
            **self.receipt(finished),
        }


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.call_id, "name": call.name}
