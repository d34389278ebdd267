"""Anthropic's Messages: its request → Request; and count_tokens. The replies are in anthropic_reply.py.

Shapes: the Anthropic API reference, "Messages".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.errors import BadRequest, ContextOverflow, Unsupported
from exocli.server import convert, spool
from exocli.server.anthropic_reply import MessagesReply
from exocli.server.body import Body, Common, Int, Number, parse, read
from exocli.server.generate import Api, json_response
from exocli.server.state import state_of
from exocli.server.streaming import Call, unless_gone
from exocli.types import Message, Part, Request, Sampling, ToolUse, new_id


class Source(Body):
    type: str
    media_type: str | None = None
    data: str | None = None


class Inner(Body):
    """A block that holds no other blocks."""

    type: str
    text: str | None = None
    source: Source | None = None


class Block(Inner):
    """A content block; which fields count depends on `type`."""

    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Inner] | None = None
    thinking: str | None = None


class Turn(Body):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Body):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive"]


class OutputConfig(Body):
    format: dict[str, Any] | None = None


class CountRequest(Common):
    model: str | None = None
    messages: list[Turn]
    system: str | list[Inner] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    """What `output_config.format` was called while it was a beta."""
    mcp_servers: list[Any] | None = None
    container: Any = None


class MessagesRequest(CountRequest):
    """`max_tokens` is required by the original; here it may be left out."""

    max_tokens: Int | None = Field(default=None, ge=1)
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Number | None = Field(default=None, ge=0)
    top_p: Number | None = Field(default=None, ge=0, le=1)
    top_k: Int | None = Field(default=None, ge=-1)


def parse_messages(raw: bytes) -> Call:
    """Raises BadRequest naming the field."""
    body = parse(MessagesRequest, raw)
    request = Request(
        sampling=Sampling(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k),
        max_tokens=body.max_tokens,
        stop=convert.stops(body.stop_sequences),
        **_shared(body),
    )
    return Call(
        request=request,
        model=body.model,
        stream=bool(body.stream),
        return_progress=bool(body.return_progress),
        timeout=body.timeout,
        one_tool_call=bool(body.tool_choice and body.tool_choice.disable_parallel_tool_use),
    )


def _shared(body: CountRequest) -> dict[str, Any]:
    if not body.messages:
        raise BadRequest("messages: give at least one message.", field="messages")
    for field in ("mcp_servers", "container"):
        convert.refuse(field, getattr(body, field), "is only to be had of Anthropic's own servers")
    messages: list[Message] = []
    system = _plain_text(body.system, "system") if body.system else ""
    if system:
        messages.append(Message(role="system", content=system))
    for index, turn in enumerate(body.messages):
        messages.extend(_turn(turn, f"messages.{index}"))
    tools = tuple(_tool(index, tool) for index, tool in enumerate(body.tools or ()))
    given = (body.output_config.format if body.output_config else None) or body.output_format
    return {
        "messages": tuple(messages),
        **convert.offered(tools, _choice(body.tool_choice)),
        "reasoning": None if body.thinking is None else body.thinking.type != "disabled",
        "format": convert.format_of(given, "output_config.format"),
        "continue_last": convert.prefill(messages),
    }


def _tool(index: int, tool: Tool) -> dict[str, Any]:
    if tool.input_schema is None:
        raise BadRequest(
            f'tools.{index}: the server tool "{tool.type or tool.name}" is not offered here; '
            "give tools with an input_schema.",
            field="tools",
        )
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice | None) -> Any:
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name or ""}}
    return {"auto": "auto", "any": "required", "none": "none"}[choice.type]


def _turn(turn: Turn, where: str) -> Iterator[Message]:
    """One of theirs may be several of ours: each tool result is a message of its own, before the rest."""
    if isinstance(turn.content, str):
        yield Message(role=turn.role, content=turn.content)
        return
    parts: list[Part] = []
    calls: list[ToolUse] = []
    thinking: list[str] = []
    results = 0
    for number, block in enumerate(turn.content):
        place = f"{where}.content.{number}"
        match block.type:
            case "tool_use":
                arguments = json.dumps(block.input or {})
                calls.append(ToolUse(id=block.id or "", name=block.name or "", arguments=arguments))
            case "tool_result":
                results += 1
                yield Message(
                    role="tool", content=_plain_text(block.content, place), tool_call_id=block.tool_use_id
                )
            case "thinking":
                thinking.append(block.thinking or "")
            case "redacted_thinking":
                continue
            case _:
                parts.append(_part(block, place))
    if parts or calls or not results:
        content = convert.text_or_parts(parts)
        yield Message(
            role=turn.role,
            content=None if calls and not parts else content,
            tool_calls=tuple(calls),
            reasoning="".join(thinking) or None,
        )


def _part(block: Inner, where: str) -> Part:
    if block.type == "text" and block.text is not None:
        return Part(text=block.text)
    if block.type == "image" and block.source is not None:
        if block.source.type != "base64" or block.source.data is None:
            raise BadRequest(f"{where}: give the image as base64; this server fetches nothing.", field=where)
        return convert.image_data(block.source.data, block.source.media_type or "image/png", where)
    raise BadRequest(f'{where}: a block of type "{block.type[:40]}" is not supported here.', field=where)


def _plain_text(content: str | Sequence[Inner] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for block in content:
        if block.type != "text" or block.text is None:
            raise BadRequest(f"{where}: only text is supported here, not {block.type[:40]}.", field=where)
    return "\n".join(block.text or "" for block in content)


async def count_tokens(http: HttpRequest) -> Response:
    """What the engine's own template and tokenizer make of it. Loads the model if need be."""
    state = state_of(http)
    state.refuse_while_leaving()
    body = parse(CountRequest, await read(http, state.settings.max_body))
    model, _ = state.hub.find_for(body.model, "chat")
    with spool.all_or_none():
        request = Request(id=new_id(), model=model.name, **_shared(body))
    user = f"count-{request.id}"
    model.entered(user)
    try:
        session = await model.session()
        prepared = await unless_gone(http, session.prepare(request))
        session.forget(request.id)
    except ContextOverflow as error:  # too long to answer, not to count
        if "prompt_tokens" not in error.details:
            raise
        return json_response({"input_tokens": error.details["prompt_tokens"]})
    finally:
        model.left(user)
        spool.discard(request)
    if prepared.settings.get("counted") is False:
        raise Unsupported(f"The backend {model.served.backend} cannot count tokens.")
    return json_response({"input_tokens": prepared.prompt_tokens})


API = Api("anthropic.messages", parse_messages, MessagesReply)
