"""OpenAI's Responses, stateless: its request → Request. The replies are in openai_responses_reply.py.

Shapes: the OpenAI API reference, "Responses".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.errors import BadRequest
from exocli.server import convert
from exocli.server.body import Body, Common, Int, Number, parse
from exocli.server.generate import Api, json_response
from exocli.server.openai_responses_reply import ResponsesReply, envelope
from exocli.server.problems import UnknownRoute
from exocli.server.state import state_of
from exocli.server.streaming import Call
from exocli.types import Message, Part, Request, Sampling, ToolUse

MIRRORED = {
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "temperature",
    "tool_choice",
    "top_p",
}
"""What the response object repeats of the request as it was."""


class InputPart(Body):
    type: str
    text: str | None = None
    image_url: str | None = None
    refusal: str | None = None


class InputItem(Body):
    """A message, or one of the other items; which fields count depends on `type`."""

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None


class TextConfig(Body):
    format: dict[str, Any] | None = None


class ReasoningConfig(Body):
    effort: str | None = None


class StreamOptions(Body):
    include_obfuscation: bool | None = None


class ResponsesRequest(Common):
    model: str | None = None
    input: str | list[InputItem]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: Int | None = Field(default=None, ge=1)
    temperature: Number | None = Field(default=None, ge=0)
    top_p: Number | None = Field(default=None, ge=0, le=1)
    top_logprobs: Int | None = Field(default=None, ge=0, le=convert.MAX_LOGPROBS)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    truncation: str | None = None
    prompt: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


def parse_responses(raw: bytes) -> Call:
    """Raises BadRequest naming the field."""
    body = parse(ResponsesRequest, raw)
    stateless = "needs a server that keeps conversations; this one does not: send the whole input"
    for field in ("previous_response_id", "conversation"):
        convert.refuse(field, getattr(body, field), stateless)
    for field in ("background", "prompt"):
        convert.refuse(field, getattr(body, field))
    if body.truncation not in (None, "disabled"):
        raise BadRequest('truncation: only "disabled" works here.', field="truncation")
    messages = [Message(role="system", content=body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        messages.append(Message(role="user", content=body.input))
    else:
        messages += _messages(body.input)
    if not body.input:
        raise BadRequest("input: give at least one item.", field="input")
    tools = convert.function_tools(map(_nested, body.tools or ()))
    wants = "message.output_text.logprobs" in (body.include or ()) or body.top_logprobs
    effort = body.reasoning.effort if body.reasoning else None
    request = Request(
        messages=tuple(messages),
        sampling=Sampling(temperature=body.temperature, top_p=body.top_p),
        max_tokens=body.max_output_tokens,
        **convert.offered(tools, _nested(body.tool_choice)),
        format=convert.format_of(body.text.format if body.text else None, "text.format"),
        logprobs=(body.top_logprobs or 0) if wants else None,
        reasoning=False if effort == "none" else effort,
    )
    return Call(
        request=request,
        model=body.model,
        stream=bool(body.stream),
        return_progress=bool(body.return_progress),
        timeout=body.timeout,
        one_tool_call=body.parallel_tool_calls is False,
        mirrored=body.model_dump(include=MIRRORED, exclude_none=True),
    )


def _nested(tool: Any) -> Any:
    """A flat `{"type": "function", "name": …}` → the Chat API's nested form."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {key: v for key, v in tool.items() if key != "type"}}


def _messages(items: list[InputItem]) -> Iterator[Message]:
    """Reasoning, then text, then calls, as they follow each other, are one assistant's turn."""
    turn: Message | None = None
    thought: str | None = None
    for index, item in enumerate(items):
        where = f"input.{index}"
        if item.type == "function_call":
            call = ToolUse(id=item.call_id or "", name=item.name or "", arguments=item.arguments or "{}")
            turn = turn or Message(role="assistant", reasoning=thought)
            turn, thought = replace(turn, tool_calls=(*turn.tool_calls, call)), None
            continue
        if turn is not None:
            yield turn
            turn = None
        if item.type == "reasoning":
            parts = item.content if isinstance(item.content, list) else []
            thought = "".join(part.text or "" for part in parts) or None
        elif item.type == "function_call_output":
            yield Message(role="tool", content=_content(item.output, where), tool_call_id=item.call_id)
        elif item.type in (None, "message") and item.role == "assistant":
            turn = Message(role="assistant", content=_content(item.content, where), reasoning=thought)
            thought = None
        elif item.type in (None, "message") and item.role is not None:
            yield Message(role=item.role, content=_content(item.content, where))
            thought = None
        else:
            kind = (item.type or "without a role")[:40]
            raise BadRequest(f'{where}: an item "{kind}" is not supported here.', field=where)
    if turn is not None:
        yield turn


def _content(content: str | list[InputPart] | None, where: str) -> str | tuple[Part, ...]:
    if content is None:
        raise BadRequest(f"{where}: it has no content.", field=where)
    if isinstance(content, str):
        return content
    return convert.text_or_parts([_part(part, where) for part in content])


def _part(part: InputPart, where: str) -> Part:
    if part.type in ("input_text", "output_text", "text") and part.text is not None:
        return Part(text=part.text)
    if part.type == "refusal" and part.refusal is not None:
        return Part(text=part.refusal)
    if part.type == "input_image" and part.image_url is not None:
        return convert.image(part.image_url, where)
    raise BadRequest(f'{where}: a part of type "{part.type[:40]}" is not supported here.', field=where)


ENDED = {
    "cancelled": "cancelled",
    "length": "incomplete",
    "content_filter": "incomplete",
    "error": "failed",
}
"""How a response that is over ended, in this API's words."""
API = Api("openai.responses", parse_responses, ResponsesReply)


# ----------------------------------------------------------------------- while a response is in flight


async def get_response(http: HttpRequest) -> Response:
    """Only while it runs: this server keeps no replies."""
    running = state_of(http).requests.find(http.path_params["id"])
    if running is None:
        text = f'No response "{http.path_params["id"][:150]}" is in flight; this server keeps none.'
        raise UnknownRoute(text)
    status = "queued" if running.phase in ("queued", "loading") else "in_progress"
    return json_response(envelope(running, running.model.name, status))


async def cancel_response(http: HttpRequest) -> Response:
    """The response as it ended, with the receipt under `exo`."""
    registry = state_of(http).requests
    running = registry.find(http.path_params["id"])
    code, receipt = await registry.cancel(http.path_params["id"])
    ended = {"cancelled": "cancelled", "cancelling": "in_progress"}.get(receipt["state"])
    status = ended or ENDED.get(receipt["reason"], "completed")
    if running is None:
        own = {"object": "response", **receipt, "id": f"resp_{receipt['id']}", "status": status}
        return json_response(own)
    body = envelope(running, running.model.name, status)
    return json_response({**body, "exo": {"cancel": receipt}}, code)
