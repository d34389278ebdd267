"""Ollama's own API: a Request → the body of /api/chat or /api/generate; its lines → events. Pure.

Shapes: Ollama's API documentation. Used in place of its OpenAI routes, which know neither thinking nor
the context's options.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from exocli import Event, Message, Reasoning, Request, Text, Unsupported, UpstreamError, Usage

from exo_remote import chunks, problems
from exo_remote.messages import encoded


def route(request: Request) -> str:
    return "/api/generate" if request.task == "complete" else "/api/chat"


def body(request: Request, model: str) -> dict[str, Any]:
    """Raises BadRequest for a part that cannot be sent."""
    data: dict[str, Any] = {"model": model, "stream": True, "options": _options(request)}
    if request.task == "complete":
        data |= {"prompt": request.prompt or "", "raw": True}
    else:
        data["messages"] = [_message(message) for message in request.messages]
    if request.tools and request.tool_choice != "none":
        data["tools"] = list(request.tools)
    if request.format is not None:
        data["format"] = _format(request.format)
    if request.reasoning is not None:
        data["think"] = request.reasoning
    if request.logprobs is not None:
        data |= {"logprobs": True, "top_logprobs": request.logprobs}
    return data


def _format(given: Mapping[str, Any]) -> Any:
    if (kind := given["type"]) not in ("json_object", "json_schema"):
        raise Unsupported(f"Ollama's API does not offer the format {kind}.", field="format")
    return given.get("schema", "json")


def _options(request: Request) -> dict[str, Any]:
    sampling = request.sampling
    found = {
        "num_predict": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": list(request.stop) or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _message(message: Message) -> dict[str, Any]:
    parts = message.content if isinstance(message.content, tuple) else ()
    text = message.content if isinstance(message.content, str) else "".join(p.text for p in parts)
    data: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": text,
    }
    if images := [encoded(part) for part in parts if part.kind != "text"]:
        data["images"] = images
    if message.reasoning:
        data["thinking"] = message.reasoning
    if message.name is not None:
        data["tool_name"] = message.name
    if message.tool_calls:
        data["tool_calls"] = [
            {"function": {"name": c.name, "arguments": _object(c.arguments)}} for c in message.tool_calls
        ]
    return data


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


class OllamaReply(chunks.Reply):
    """One reply, a JSON object a line; lines without content are heartbeats."""

    def on_json(self, text: str, kind: str = "message") -> Iterator[Event]:
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise UpstreamError(f"{self.url} sent a line that is not a JSON object.", url=self.url)
        if data.get("error"):
            raise problems.of_event(data["error"], self.url)
        said: Mapping[str, Any] = data.get("message") or {}
        if thought := said.get("thinking") or data.get("thinking"):
            yield self._say(Reasoning(id=self.id, text=str(thought)))
        if words := said.get("content") or data.get("response"):
            found = chunks.logprobs_of({"content": data.get("logprobs")})
            yield self._say(Text(id=self.id, text=str(words), logprobs=found))
        for call in said.get("tool_calls") or ():
            self._fragment({**call, "index": len(self._calls)}, 0)
        if data.get("done"):
            self._reason = str(data.get("done_reason") or "stop")
            self._done = True
            self._usage = Usage(
                prompt_tokens=chunks.count_of(data.get("prompt_eval_count")),
                completion_tokens=chunks.count_of(data.get("eval_count")),
            )
