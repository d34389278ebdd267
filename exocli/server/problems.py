"""Errors over HTTP: which status and headers, and each API's own shape. Pure.

An ExoError comes in; what a client of that API expects goes out. The path says which API it is, so that
an error found before any adapter ran (key, host, size) has the right shape too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from exocli.errors import BadRequest, ContextOverflow, ExoError, ModelBroken, Unavailable
from exocli.types import Finished

HIDDEN = frozenset({"trace", "stderr"})
"""Details that are for the machine's owner (the log), not for whoever can reach the port."""


class Unauthorized(ExoError):
    code = "invalid_api_key"
    http_status = 401


class Forbidden(ExoError):
    code = "forbidden"
    http_status = 403


class UnknownRoute(ExoError):
    code = "not_found"
    http_status = 404


class WrongMethod(ExoError):
    code = "method_not_allowed"
    http_status = 405


class TooSlow(ExoError):
    """The client did not send its body in time."""

    code = "request_timeout"
    http_status = 408


class TooLarge(ExoError):
    code = "request_too_large"
    http_status = 413


class WrongEncoding(ExoError):
    """The body is compressed."""

    code = "unsupported_encoding"
    http_status = 415


class NotOffered(ExoError):
    """A task that no backend offers."""

    code = "not_implemented"
    http_status = 501


class Leaving(Unavailable):
    """The server is shutting down."""

    code = "shutting_down"


class CancelledReply(ExoError):
    """Cancelled by id before there was a token to answer with."""

    code = "cancelled"
    http_status = 499


class DeadlinePassed(ExoError):
    """The request's own timeout passed before there was a token."""

    code = "deadline_exceeded"
    http_status = 504


_TYPES: Mapping[str, Mapping[int, str]] = {
    "openai": {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"},
    "anthropic": {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
    },
}


def api_of(path: str, headers: Mapping[str, str] | None = None) -> str:
    """ "openai", "anthropic" or "ollama": whose error shape a path has. Anthropic's clients, which tell
    their version, share paths with OpenAI's."""
    if path.startswith("/api/"):
        return "ollama"
    theirs = path.startswith("/v1/messages") or "anthropic-version" in (headers or ())
    return "anthropic" if theirs else "openai"


def headers_of(error: ExoError) -> dict[str, str]:
    """Retry-After where waiting helps; `x-should-retry: false` where the request itself or the model's
    files are at fault."""
    status = error.http_status
    headers: dict[str, str] = {}
    lasting = isinstance(error, BadRequest) or error.code == ModelBroken.code
    if status in (429, 503) and not lasting:
        headers["Retry-After"] = str(max(1, round(error.details.get("retry_after", 1))))
    elif lasting or status in (401, 403, 404, 405, 413, 415, 499, 501, 504):
        headers["x-should-retry"] = "false"
    if status in (408, 413, 415):
        headers["Connection"] = "close"  # whatever is still on its way is not read
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


TOO_LONG = "prompt is too long"
"""By this clients (litellm, LangChain, Anthropic's own) know that they must shorten the conversation."""


def message_of(error: ExoError) -> str:
    """What the client reads."""
    if not isinstance(error, ContextOverflow) or "field" in error.details or TOO_LONG in error.message:
        return error.message
    return f"The {TOO_LONG}. {error.message}"


_OPENAI_NAMES = {"format": "response_format"}
"""Fields of our Request → what OpenAI's clients call them, where they differ."""


def body_of(error: ExoError, api: str, request_id: str | None = None) -> dict[str, Any]:
    """The JSON body of an error, as `api`'s clients expect it."""
    status, message = error.http_status, message_of(error)
    details = {key: value for key, value in error.details.items() if key not in HIDDEN}
    if api == "ollama":
        body: dict[str, Any] = {"error": message}
        if details:
            body["exo"] = {"code": error.code, **details}
        return body
    if api == "anthropic":
        kind = _TYPES[api].get(status, "invalid_request_error" if status < 500 else "api_error")
        inner: dict[str, Any] = {
            "type": kind,
            "message": message,
            "code": error.code,
            **_extra(details),
        }
        return {"type": "error", "error": inner, "request_id": request_id}
    kind = _TYPES[api].get(status, "invalid_request_error" if status < 500 else "server_error")
    param = _OPENAI_NAMES.get(str(details.get("field")), details.get("field"))
    inner = {"message": message, "type": kind, "param": param, "code": error.code}
    return {"error": {**inner, **_extra(details)}}


def _extra(details: Mapping[str, Any]) -> dict[str, Any]:
    return {"details": dict(details)} if details else {}


def cancelled_error(finished: Finished, reason: str | None) -> ExoError:
    """A non-streaming reply that was cancelled before its first token."""
    receipt = finished.cancel
    details = {"phase": receipt.phase, "processed": receipt.processed} if receipt else {}
    if reason == "deadline":
        return DeadlinePassed("The request's timeout passed before the first token.", **details)
    return CancelledReply("The request was cancelled before the first token.", **details)


def encode(data: Any) -> bytes:
    """JSON in ASCII: U+2028 and friends reach clients that split lines by Python's rules unharmed."""
    return json.dumps(data, separators=(",", ":")).encode("ascii")
