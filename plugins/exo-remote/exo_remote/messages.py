"""A Request → the JSON body of OpenAI's Chat Completions (or Completions), as a dialect has it. Pure.

Only what was asked for is sent: what is left out is the server's to choose.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exocli import BadRequest, Message, Part, Request, Sampling

from exo_remote.dialects import Dialect


def with_defaults(request: Request, defaults: Mapping[str, Any]) -> Request:
    """The config's sampling where the request says nothing."""
    known = {key: value for key, value in defaults.items() if getattr(request.sampling, key, 0) is None}
    return replace(request, sampling=replace(request.sampling, **known)) if known else request


def route(request: Request) -> str:
    return "/completions" if request.task == "complete" else "/chat/completions"


def body(request: Request, dialect: Dialect, model: str, upstream_id: str) -> dict[str, Any]:
    """Raises BadRequest for a part that cannot be sent."""
    data: dict[str, Any] = {"model": model, "stream": True}
    if request.task == "complete":
        data["prompt"] = request.prompt or ""
    else:
        data["messages"] = [_message(message, dialect) for message in request.messages]
    if dialect.stream_options:
        data["stream_options"] = {"include_usage": True}
    if dialect.progress == "prompt_progress":
        data["return_progress"] = True
    if dialect.cancel == "abort":
        data["rid"] = upstream_id
    data.update(_sampling(request.sampling, dialect))
    if dialect.max_tokens is not None:
        data["max_tokens"] = dialect.max_tokens
    data.update(_asked(request))
    if request.continue_last:
        data.update(_continue(dialect))
    return data


def _sampling(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    found: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        dialect.repetition: sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    if sampling.logit_bias:
        found["logit_bias"] = {str(token): value for token, value in sampling.logit_bias.items()}
    return {key: value for key, value in found.items() if value is not None}


def _asked(request: Request) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if request.max_tokens is not None:
        data["max_tokens"] = request.max_tokens
    if request.stop:
        data["stop"] = list(request.stop)
    if request.tools:
        data["tools"] = list(request.tools)
        if request.tool_choice is not None:
            data["tool_choice"] = request.tool_choice
    if request.format is not None:
        data["response_format"] = _format(request.format)
    if request.logprobs is not None:
        if request.task == "complete":
            data["logprobs"] = request.logprobs
        else:
            data["logprobs"] = True
            if request.logprobs:
                data["top_logprobs"] = request.logprobs
    kwargs = dict(request.template_kwargs)
    if isinstance(request.reasoning, str):
        data["reasoning_effort"] = request.reasoning
    elif request.reasoning is not None:
        kwargs.setdefault("enable_thinking", request.reasoning)
    if kwargs:
        data["chat_template_kwargs"] = kwargs
    return data


def _continue(dialect: Dialect) -> dict[str, Any]:
    """llama.cpp's server goes on with an assistant's message at the end by itself."""
    if dialect.name == "llama.cpp":
        return {}
    more = {} if dialect.name == "exo" else {"add_generation_prompt": False}
    return {"continue_final_message": True, **more}


def _format(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type") != "json_schema":
        return dict(given)
    inner = {key: given[key] for key in ("schema", "strict") if key in given}
    return {"type": "json_schema", "json_schema": {"name": given.get("name", "reply"), **inner}}


def _message(message: Message, dialect: Dialect) -> dict[str, Any]:
    role = message.role
    if role == "developer" and not dialect.developer_role:
        role = "system"
    data: dict[str, Any] = {"role": role, "content": message.content}
    if isinstance(message.content, tuple):
        data["content"] = [_part(part) for part in message.content]
    if message.tool_calls:
        data["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        data["name"] = message.name
    if message.reasoning and dialect.keeps_reasoning:
        data["reasoning_content"] = message.reasoning
    return data


def _part(part: Part) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    url = f"data:{part.media_type or 'image/png'};base64,{encoded(part)}"
    return {"type": "image_url", "image_url": {"url": url}}


def encoded(part: Part) -> str:
    """A spool file's bytes in base64. Raises BadRequest."""
    if part.kind != "image" or part.path is None:
        raise BadRequest("The remote backend sends text and images, nothing else.", field="messages")
    try:
        raw = Path(part.path).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadRequest(f"The image {part.path} cannot be read: {reason}.", field="messages") from None
    return base64.b64encode(raw).decode("ascii")
