"""What the APIs have in common on their way to a Request: content parts, tools, penalties, images. Pure.

The canonical forms: tools and tool_choice as OpenAI's Chat API has them; format as in `types.Request`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exocli.errors import BadRequest
from exocli.server import spool
from exocli.types import Message, Part

MAX_STOPS = 64
MAX_LOGPROBS = 20


def stops(value: str | list[str] | None) -> tuple[str, ...]:
    """Raises BadRequest for too many or an empty one."""
    found = (value,) if isinstance(value, str) else tuple(value or ())
    if len(found) > MAX_STOPS:
        raise BadRequest(f"stop: at most {MAX_STOPS} strings.", field="stop")
    if not all(found):
        raise BadRequest("stop: a stop string must not be empty.", field="stop")
    return found


def only_one(n: int | None, field: str = "n") -> None:
    if n is not None and n != 1:
        raise BadRequest(
            f"{field}: this server writes one reply a request, so {field} can only be 1.", field=field
        )


def refuse(field: str, value: Any, why: str = "is not supported here") -> None:
    """A known field that cannot be honoured; None, false and empty values ask for nothing."""
    if value not in (None, False, "", [], {}):
        raise BadRequest(f"{field} {why}.", field=field)


def bias(value: Mapping[str, float] | None) -> dict[int, float] | None:
    """Token id → bias. Raises BadRequest."""
    if not value:
        return None
    try:
        return {int(key): float(number) for key, number in value.items()}
    except ValueError:
        raise BadRequest("logit_bias: keys must be token ids.", field="logit_bias") from None


def text_or_parts(parts: Sequence[Part]) -> str | tuple[Part, ...]:
    """Text alone is a string; only with something else beside it does it stay in parts."""
    if all(part.kind == "text" for part in parts):
        return "".join(part.text for part in parts)
    return tuple(parts)


def image(url: str, field: str) -> Part:
    """An image given as a data: URL. Others are not fetched: a server that fetches what it is told to
    can be turned against its own network."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        raise BadRequest(f"{field}: give the image as a data: URL; this server fetches nothing.", field=field)
    media_type = head.removeprefix("data:").split(";")[0] or "image/png"
    if not head.endswith(";base64"):
        raise BadRequest(f"{field}: the data: URL must be base64.", field=field)
    return image_data(data, media_type, field)


def image_data(data: str, media_type: str, field: str) -> Part:
    """Base64 into a spool file, which goes when the request is over."""
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"{field}: the image is not valid base64.", field=field) from None
    return Part(kind="image", path=spool.write(raw), media_type=media_type)


def function_tools(tools: Iterable[Any] | None, field: str = "tools") -> tuple[dict[str, Any], ...]:
    """Raises BadRequest for tools that only a vendor's own servers have."""
    found = []
    for index, tool in enumerate(tools or ()):
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            kind = tool.get("type") if isinstance(tool, Mapping) else None
            raise BadRequest(
                f'{field}.{index}: only tools of type "function" work here, not {kind}.', field=field
            )
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRequest(f"{field}.{index}: the function has no name.", field=field)
        found.append({"type": "function", "function": dict(function)})
    return tuple(found)


def offered(tools: tuple[dict[str, Any], ...], choice: Any) -> dict[str, Any]:
    """Request's fields. A choice is nothing without tools, and tools are nothing where none may be called."""
    if not tools or choice == "none":
        return {"tools": (), "tool_choice": None}
    return {"tools": tools, "tool_choice": choice}


def arguments_of(text: str) -> Any:
    """A call's arguments as an object, for APIs that carry them so; {} where a model wrote no JSON."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {"_raw": text}
    return value if isinstance(value, dict) else {"_raw": text}


def prefill(messages: Sequence[Message]) -> bool:
    """Anthropic and Ollama: an assistant's message at the end is to be continued."""
    last = messages[-1] if messages else None
    return last is not None and last.role == "assistant" and bool(last.content) and not last.tool_calls


_TEXTS = {"regex": "pattern", "grammar": "grammar"}
"""Formats of our own, and the field that holds their text."""


def format_of(value: Mapping[str, Any] | None, field: str = "response_format") -> dict[str, Any] | None:
    """OpenAI's response_format (or Responses' text.format, where the schema lies beside the type), or one
    of ours. Raises BadRequest."""
    if value is None:
        return None
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "json_schema":
        inner = value.get("json_schema", value)
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if not isinstance(schema, (Mapping, bool)):
            raise BadRequest(f"{field}: the json_schema has no schema.", field=field)
        more = {key: inner[key] for key in ("name", "strict") if inner.get(key) is not None}
        return {"type": "json_schema", "schema": schema, **more}
    if kind in _TEXTS:
        name = _TEXTS[kind]
        if not isinstance(value.get(name), str) or not value[name]:
            raise BadRequest(f"{field}: the {kind} has no {name}.", field=field)
        return {"type": kind, **{key: value[key] for key in ("syntax", name) if value.get(key) is not None}}
    kinds = ", ".join(["text", "json_object", "json_schema", *_TEXTS])
    raise BadRequest(f"{field}: the type must be one of {kinds}.", field=field)
