"""A request's body: read with limits, parsed strictly, validated by a pydantic model.

Every fault is a BadRequest that names the field. Knows no API in particular.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from exocli.errors import BadRequest
from exocli.server.problems import TooLarge, TooSlow, WrongEncoding
from exocli.server.settings import BODY_TIMEOUT_S

M = TypeVar("M", bound="Body")


class ClientGone(Exception):
    """The connection was closed before the answer began: there is nobody to answer."""


def _whole(value: Any) -> Any:
    """1e9 is a whole number in JSON; "5" and true are not numbers at all."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(_whole)]
Natural = Annotated[Int, Field(ge=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Stop = str | list[str] | None
Seed = Annotated[Int, Field(ge=-(1 << 63), le=(1 << 63) - 1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Body(BaseModel):
    """Unknown fields are ignored, known ones are checked without coercion."""

    # Built at its first use: all of them together are a third of what starting the server takes.
    model_config = ConfigDict(
        extra="ignore", strict=True, populate_by_name=True, allow_inf_nan=False, defer_build=True
    )


class Common(Body):
    """What every generating request may carry of our own."""

    return_progress: bool | None = None
    timeout: Seconds | None = None


async def read(http: HttpRequest, limit: int) -> bytes:
    """The whole body. Raises WrongEncoding, TooLarge as soon as it is, TooSlow, ClientGone."""
    encoding = http.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise WrongEncoding(f"Content-Encoding: send the body as it is, not as {encoding[:40]}.")
    declared = http.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in http.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise TooSlow(f"The request's body did not arrive within {BODY_TIMEOUT_S:.0f} s.") from None
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(parts)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request's body is larger than {limit} bytes.", limit=limit)


def parse(model: type[M], raw: bytes) -> M:
    """Raises BadRequest with the first fault's place and reason."""
    try:
        data = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from None
    if not isinstance(data, dict):
        raise BadRequest("The body must be a JSON object.")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"] if not _is_branch(part)) or None
        reason = first["msg"].removeprefix("Value error, ")
        raise BadRequest(f"{field or 'The body'}: {reason}.".replace("..", "."), field=field) from None


def _is_branch(part: int | str) -> bool:
    """pydantic names the branch of a union that it tried: `list[str]`, `TextPart`; no field of any API."""
    return isinstance(part, str) and ("[" in part or part[:1].isupper() or part in ("str", "int", "bool"))
