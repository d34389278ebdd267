"""OpenAI's Chat Completions: its request → Request, events → its chunks.

Shapes: the OpenAI API reference, "Chat"; `reasoning_content` as DeepSeek's and vLLM's servers have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from exocli.errors import BadRequest
from exocli.server import convert
from exocli.server.body import Body, Int, parse
from exocli.server.generate import Api
from exocli.server.openai_fields import FINISH, OpenAIReply, OpenAIRequest
from exocli.server.streaming import Call, Collected
from exocli.types import (
    Event,
    Finished,
    Message,
    Part,
    Reasoning,
    Request,
    Started,
    Text,
    ToolCall,
    ToolUse,
)


class ImageUrl(Body):
    url: str


class ContentPart(Body):
    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None


class CallFunction(Body):
    name: str
    arguments: str = "{}"


class ToolCallIn(Body):
    id: str = ""
    function: CallFunction


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallIn] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatRequest(OpenAIRequest):
    """`max_completion_tokens` wins over the older `max_tokens`."""

    messages: list[ChatMessage]
    max_completion_tokens: Int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: Int | None = Field(default=None, ge=0, le=convert.MAX_LOGPROBS)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    web_search_options: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None


def parse_chat(raw: bytes) -> Call:
    """Raises BadRequest naming the field."""
    body = parse(ChatRequest, raw)
    convert.only_one(body.n)
    convert.refuse("functions", body.functions, "is replaced by tools")
    convert.refuse("function_call", body.function_call, "is replaced by tool_choice")
    convert.refuse("audio", body.audio)
    if body.web_search_options is not None:  # an empty one asks for a search too
        raise BadRequest("web_search_options: this server searches nothing.", field="web_search_options")
    if body.modalities not in (None, [], ["text"]):
        raise BadRequest('modalities: this server writes "text" only.', field="modalities")
    if body.top_logprobs and not body.logprobs:
        raise BadRequest("top_logprobs: it needs logprobs: true.", field="top_logprobs")
    if not body.messages:
        raise BadRequest("messages: give at least one message.", field="messages")
    request = Request(
        messages=tuple(message(index, m) for index, m in enumerate(body.messages)),
        sampling=body.sampling(),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=convert.stops(body.stop),
        **convert.offered(convert.function_tools(body.tools), body.tool_choice),
        format=convert.format_of(body.response_format),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        reasoning=False if body.reasoning_effort == "none" else body.reasoning_effort,
        template_kwargs=body.chat_template_kwargs or {},
        continue_last=bool(body.continue_final_message),
    )
    return body.call(request, one_tool_call=body.parallel_tool_calls is False)


def message(index: int, given: ChatMessage) -> Message:
    """Raises BadRequest."""
    where = f"messages.{index}"
    if given.role == "function":
        raise BadRequest(f'{where}.role: "function" is replaced by "tool".', field=f"{where}.role")
    if given.content is None and given.role != "assistant":
        raise BadRequest(f"{where}.content: a {given.role} message needs content.", field=f"{where}.content")
    content: str | tuple[Part, ...] | None
    if isinstance(given.content, list):
        content = convert.text_or_parts([_part(p, f"{where}.content") for p in given.content])
    else:
        content = given.content
    calls = tuple(
        ToolUse(id=c.id, name=c.function.name, arguments=c.function.arguments) for c in given.tool_calls or ()
    )
    if given.role == "assistant" and content is None and not calls:
        content = ""
    return Message(
        role=given.role,
        content=content,
        tool_calls=calls,
        tool_call_id=given.tool_call_id,
        name=given.name,
        reasoning=given.reasoning_content or given.reasoning,
    )


def _part(part: ContentPart, where: str) -> Part:
    if part.type in ("text", "input_text", "output_text") and part.text is not None:
        return Part(text=part.text)
    if part.type == "refusal" and part.refusal is not None:
        return Part(text=part.refusal)
    if part.type == "image_url" and part.image_url is not None:
        url = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url
        return convert.image(url, where)
    raise BadRequest(f'{where}: a part of type "{part.type[:40]}" is not supported here.', field=where)


# ------------------------------------------------------------------------------------------- replies


def logprob_content(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours ({token, id, logprob, top}) → theirs."""
    return [
        {
            **_logprob(entry["token"], entry["logprob"]),
            "top_logprobs": [_logprob(token, value) for token, _, value in entry.get("top", ())],
        }
        for entry in entries
    ]


def _logprob(token: str, value: float) -> dict[str, Any]:
    # JSON has no -inf; OpenAI's own floor is -9999.0.
    return {"token": token, "logprob": max(value, -9999.0), "bytes": list(token.encode("utf-8", "replace"))}


def _logprobs(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"content": logprob_content(entries), "refusal": None}


def tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


class ChatReply(OpenAIReply):
    prefix = "chatcmpl-"
    chunk = "chat.completion.chunk"
    object = "chat.completion"

    def on(self, event: Event) -> Iterator[bytes]:
        match event:
            case Started():
                yield self._chunk({"role": "assistant", "content": ""})
            case Text(text=text, logprobs=logprobs):
                yield self._chunk({"content": text}, logprobs=logprobs)
            case Reasoning(text=text):
                yield self._chunk({"reasoning_content": text})
            case ToolCall():
                yield self._chunk({"tool_calls": [{"index": event.index, **tool_call(event)}]})
            case Finished(reason=reason):
                yield self._chunk({}, finish=FINISH.get(reason, reason), **self.receipt(event))
                yield from self.end(event)

    def _chunk(
        self,
        delta: dict[str, Any],
        finish: str | None = None,
        logprobs: list[dict[str, Any]] | None = None,
        **more: Any,
    ) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
        if logprobs:
            choice["logprobs"] = _logprobs(logprobs)
        return self.piece(choice, **more)

    def whole(self, collected: Collected) -> dict[str, Any]:
        finished = collected.finished
        text = "".join(collected.text)
        said: dict[str, Any] = {
            "role": "assistant",
            "content": None if collected.calls and not text else text,
        }
        if collected.reasoning:
            said["reasoning_content"] = "".join(collected.reasoning)
        if collected.calls:
            said["tool_calls"] = [tool_call(call) for call in collected.calls]
        choice: dict[str, Any] = {
            "index": 0,
            "message": said,
            "finish_reason": FINISH.get(finished.reason, finished.reason),
            "logprobs": None,
        }
        if collected.logprobs is not None:
            choice["logprobs"] = _logprobs(collected.logprobs)
        return self.body(choice, finished)


API = Api("openai.chat", parse_chat, ChatReply)
