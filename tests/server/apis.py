"""The generating routes as data, so that what holds for every API is tested on every API."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.server.sse import parse


@dataclass(frozen=True)
class Api:
    """`body(text)` asks for the scripted reply `text`; `text_of` reads a whole reply, `read_stream` folds a
    stream's bytes into (text, last word on the reason, whether the end marker came, receipt or None)."""

    name: str
    path: str
    body: Callable[[str], dict[str, Any]]
    text_of: Callable[[Any], str]
    read_stream: Callable[[bytes], tuple[str, str | None, bool, Any]]
    truncated: str
    message_of: Callable[[Any], str] = lambda body: body["error"]["message"]

    def __repr__(self) -> str:
        return self.name

    def ask(self, text: str, stream: bool, **more: Any) -> dict[str, Any]:
        return {**self.body(text), "stream": stream, **more}


def _messages(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _openai(raw: bytes, piece: Callable[[Any], str]) -> tuple[str, str | None, bool, Any]:
    events = [event.data for event in parse(raw)]
    done = bool(events) and events[-1] == "[DONE]"
    chunks = [json.loads(data) for data in events if data != "[DONE]"]
    choices = [c["choices"][0] for c in chunks if c.get("choices")]
    reasons = [c["finish_reason"] for c in choices if c["finish_reason"]]
    receipts = [c["exo"] for c in chunks if "exo" in c]
    text = "".join(piece(choice) for choice in choices)
    return text, reasons[-1] if reasons else None, done, receipts[-1] if receipts else None


def _anthropic(raw: bytes) -> tuple[str, str | None, bool, Any]:
    events = [(event.type, json.loads(event.data)) for event in parse(raw)]
    assert all(kind == data["type"] for kind, data in events)
    text = "".join(
        data["delta"]["text"]
        for kind, data in events
        if kind == "content_block_delta" and data["delta"]["type"] == "text_delta"
    )
    ends = [data for kind, data in events if kind == "message_delta"]
    reason = ends[-1]["delta"]["stop_reason"] if ends else None
    return text, reason, events[-1][0] == "message_stop", ends[-1].get("exo") if ends else None


def _responses(raw: bytes) -> tuple[str, str | None, bool, Any]:
    events = [json.loads(event.data) for event in parse(raw)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    last = events[-1]
    ended = last["type"] in ("response.completed", "response.incomplete")
    return text, last["response"]["status"], ended, last["response"].get("exo")


def _ollama(raw: bytes, piece: Callable[[Any], str]) -> tuple[str, str | None, bool, Any]:
    assert raw.endswith(b"\n")
    lines = [json.loads(line) for line in raw.decode("ascii").split("\n")[:-1]]
    text = "".join(piece(line) for line in lines if "error" not in line)
    last = lines[-1]
    receipt = last["exo"] if "cancel" in last.get("exo", {}) else None
    return text, last.get("done_reason"), bool(last.get("done")), receipt


CHAT = Api(
    "chat",
    "/v1/chat/completions",
    _messages,
    lambda body: body["choices"][0]["message"]["content"],
    lambda raw: _openai(raw, lambda choice: choice["delta"].get("content") or ""),
    "length",
)
COMPLETIONS = Api(
    "completions",
    "/v1/completions",
    lambda text: {"prompt": text},
    lambda body: body["choices"][0]["text"],
    lambda raw: _openai(raw, lambda choice: choice["text"]),
    "length",
)
RESPONSES = Api(
    "responses",
    "/v1/responses",
    lambda text: {"input": text},
    lambda body: "".join(p["text"] for i in body["output"] if i["type"] == "message" for p in i["content"]),
    _responses,
    "cancelled",
)
ANTHROPIC = Api(
    "anthropic",
    "/v1/messages",
    lambda text: {**_messages(text), "max_tokens": 100000},
    lambda body: "".join(b["text"] for b in body["content"] if b["type"] == "text"),
    _anthropic,
    "max_tokens",
)
OLLAMA_CHAT = Api(
    "ollama-chat",
    "/api/chat",
    _messages,
    lambda body: body["message"]["content"],
    lambda raw: _ollama(raw, lambda line: line["message"]["content"]),
    "length",
    lambda body: body["error"],
)
OLLAMA_GENERATE = Api(
    "ollama-generate",
    "/api/generate",
    lambda text: {"prompt": text},
    lambda body: body["response"],
    lambda raw: _ollama(raw, lambda line: line["response"]),
    "length",
    lambda body: body["error"],
)
ALL = [CHAT, COMPLETIONS, RESPONSES, ANTHROPIC, OLLAMA_CHAT, OLLAMA_GENERATE]
SSE = [CHAT, COMPLETIONS, RESPONSES, ANTHROPIC]
