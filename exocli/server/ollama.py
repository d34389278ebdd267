"""Ollama's chat and generate: their requests → Request, events → their JSON lines.

Shapes: Ollama's API documentation (docs/api.md of its repository). Streams unless told not to.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from exocli.errors import BadRequest, ExoError
from exocli.server import convert, ollama_models
from exocli.server.body import Body, Common, Int, Number, Seed, Stop, parse
from exocli.server.generate import Api
from exocli.server.openai_chat import logprob_content
from exocli.server.problems import body_of
from exocli.server.streaming import Call, Collected, Reply, line
from exocli.types import (
    Event,
    Finished,
    Message,
    Part,
    Progress,
    Reasoning,
    Request,
    Sampling,
    Started,
    Status,
    Text,
    ToolCall,
    ToolUse,
)

DONE_REASON = {"cancelled": "length", "tool_calls": "stop", "content_filter": "stop"}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")


class Options(Body):
    """What of Ollama's options has a meaning here; num_ctx and its like are the backend's own affair."""

    num_predict: Int | None = None
    temperature: Number | None = Field(default=None, ge=0)
    top_p: Number | None = Field(default=None, ge=0, le=1)
    top_k: Int | None = Field(default=None, ge=-1)
    min_p: Number | None = Field(default=None, ge=0, le=1)
    seed: Seed | None = None
    stop: Stop = None
    repeat_penalty: Number | None = Field(default=None, gt=0)
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None


class CallFunction(Body):
    name: str
    arguments: dict[str, Any] | str = "{}"


class ToolCallIn(Body):
    function: CallFunction
    id: str | None = None


class ChatMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCallIn] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class _Either(Common):
    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    keep_alive: Number | str | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = Field(default=None, ge=0, le=convert.MAX_LOGPROBS)


class ChatRequest(_Either):
    messages: list[ChatMessage] | None = None
    tools: list[dict[str, Any]] | None = None


class GenerateRequest(_Either):
    """`raw` completes the prompt as it stands; else it is a user's message under the chat template."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    images: list[str] | None = None
    context: list[Any] | None = None


def parse_chat(raw: bytes) -> Call:
    body = parse(ChatRequest, raw)
    messages = tuple(_message(index, m) for index, m in enumerate(body.messages or ()))
    tools = convert.function_tools(body.tools)
    request = Request(
        messages=messages, tools=tools, continue_last=convert.prefill(messages), **_common(body)
    )
    return _call(body, request, empty=not messages)


def parse_generate(raw: bytes) -> Call:
    body = parse(GenerateRequest, raw)
    for field in ("suffix", "template"):
        convert.refuse(field, getattr(body, field))
    convert.refuse("context", body.context, "is not kept here: use /api/chat with the messages so far")
    prompt = body.prompt or ""
    if body.raw:
        convert.refuse("images", body.images, "cannot go with raw")
        request = Request(task="complete", prompt=prompt, **_common(body))
    else:
        user = ChatMessage(role="user", content=prompt, images=body.images)
        system = [Message(role="system", content=body.system)] if body.system else []
        request = Request(messages=(*system, _message(0, user)), **_common(body))
    return _call(body, request, empty=not prompt and not body.images)


def _call(body: _Either, request: Request, empty: bool) -> Call:
    return Call(
        request=request,
        model=body.model,
        stream=body.stream is not False,
        return_progress=True,  # it is the only form of progress that Ollama's clients pass over
        timeout=body.timeout,
        keep_alive=seconds(body.keep_alive),
        empty=empty,
    )


def _common(body: _Either) -> dict[str, Any]:
    given = body.options or Options()
    limit = given.num_predict
    if limit is not None and (limit == 0 or limit < -2):
        field = "options.num_predict"
        raise BadRequest(f"{field}: it must be at least 1, or -1 for no limit.", field=field)
    return {
        "sampling": Sampling(
            temperature=given.temperature,
            top_p=given.top_p,
            top_k=given.top_k,
            min_p=given.min_p,
            seed=given.seed,
            repetition_penalty=given.repeat_penalty,
            presence_penalty=given.presence_penalty,
            frequency_penalty=given.frequency_penalty,
        ),
        "max_tokens": limit if limit and limit > 0 else None,
        "stop": convert.stops(given.stop),
        "format": _format(body.format),
        "reasoning": body.think,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
    }


def _format(value: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if not value:
        return None
    if value == "json":
        return {"type": "json_object"}
    if isinstance(value, dict):
        return {"type": "json_schema", "schema": value}
    raise BadRequest('format must be "json" or a JSON schema.', field="format")


def seconds(value: float | str | None) -> float | None:
    """A number of seconds, or a duration like "10m" or "-1"; below 0 means for good. Raises BadRequest."""
    if value is None or isinstance(value, (int, float)):
        return value
    text = value.strip()
    sign = -1.0 if text.startswith("-") else 1.0
    text = text.lstrip("+-")
    if re.fullmatch(r"[0-9]+", text):
        return sign * float(text)
    if not text or _DURATION.sub("", text):
        raise BadRequest('keep_alive must be a duration like "10m", or seconds.', field="keep_alive")
    return sign * sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))


def _message(index: int, given: ChatMessage) -> Message:
    where = f"messages.{index}"
    parts = [Part(text=given.content)] if given.content else []
    parts += [convert.image_data(data, "image/*", f"{where}.images") for data in given.images or ()]
    calls = tuple(
        ToolUse(
            id=call.id or f"call_{index}_{number}",
            name=call.function.name,
            arguments=call.function.arguments
            if isinstance(call.function.arguments, str)
            else json.dumps(call.function.arguments),
        )
        for number, call in enumerate(given.tool_calls or ())
    )
    return Message(
        role=given.role,
        content=convert.text_or_parts(parts),
        tool_calls=calls,
        tool_call_id=given.tool_call_id,
        name=given.tool_name,
        reasoning=given.thinking,
    )


# ------------------------------------------------------------------------------------------- replies


class _OllamaReply(Reply):
    media_type = "application/x-ndjson"
    api = "ollama"

    @abstractmethod
    def _said(self, text: str, **more: Any) -> dict[str, Any]:
        """The field that holds a piece of the reply."""

    def on(self, event: Event) -> Iterator[bytes]:
        match event:
            case Started():
                return
            case Text(text=text, logprobs=logprobs):
                top = {"logprobs": logprob_content(logprobs)} if logprobs else {}
                yield self._line(self._said(text), **top)
            case Reasoning(text=text):
                yield self._line(self._said("", thinking=text))
            case ToolCall():
                yield self._line(self._said("", tool_calls=[_tool_call(event)]))
            case Finished():
                yield self._line(self._said(""), **self._end(event))

    def status(self, event: Status | Progress) -> Iterator[bytes]:
        if isinstance(event, Progress):
            yield from self.progress(event)
            return
        shown = {"phase": event.phase, "position": event.position, "done": event.done, "total": event.total}
        yield self._line(self._said(""), exo={k: v for k, v in shown.items() if v is not None})

    def progress(self, event: Progress) -> Iterator[bytes]:
        yield self._line(self._said(""), exo={"progress": self.prompt_progress(event)})

    def keepalive(self) -> bytes:
        return self._line(self._said(""))

    def failed(self, error: ExoError) -> Iterator[bytes]:
        yield line(body_of(error, self.api))

    def _head(self) -> dict[str, Any]:
        return {"model": self.model, "created_at": ollama_models.stamp(datetime.now(UTC))}

    def _line(self, said: dict[str, Any], **more: Any) -> bytes:
        return line({**self._head(), **said, "done": False, **more})

    def _end(self, finished: Finished) -> dict[str, Any]:
        """Durations are in nanoseconds, at least one where clients divide by them: one token takes none."""
        timing, usage = finished.timing, finished.usage
        prefill = (
            (usage.prompt_tokens - usage.cached_tokens) / timing.prefill_tps if timing.prefill_tps else 0.0
        )
        decode = max(0.0, timing.total_s - timing.ttft_s) if timing.ttft_s else 0.0
        return {
            "done": True,
            "done_reason": DONE_REASON.get(finished.reason, finished.reason),
            "total_duration": round(timing.total_s * 1e9),
            "load_duration": round(self.running.load_s * 1e9),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": max(1, round(prefill * 1e9)),
            "eval_count": usage.completion_tokens,
            "eval_duration": max(1, round(decode * 1e9)),
            **self.receipt(finished),
        }

    def whole(self, collected: Collected) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if collected.reasoning:
            more["thinking"] = "".join(collected.reasoning)
        if collected.calls:
            more["tool_calls"] = [_tool_call(call) for call in collected.calls]
        top = {"logprobs": logprob_content(collected.logprobs)} if collected.logprobs else {}
        said = self._said("".join(collected.text), **more)
        return {**self._head(), **said, **top, **self._end(collected.finished)}


class ChatReply(_OllamaReply):
    def _said(self, text: str, **more: Any) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, **more}}


class GenerateReply(_OllamaReply):
    def _said(self, text: str, **more: Any) -> dict[str, Any]:
        return {"response": text, **more}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"index": call.index, "name": call.name, "arguments": convert.arguments_of(call.arguments)}
    return {"id": call.call_id, "function": function}


CHAT = Api("ollama.chat", parse_chat, ChatReply, ollama_models.load_or_unload)
GENERATE = Api("ollama.generate", parse_generate, GenerateReply, ollama_models.load_or_unload)
