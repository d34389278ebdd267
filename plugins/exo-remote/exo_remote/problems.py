"""What a server's refusal means: its status, headers and text → one of exo's errors, one sentence each.

The upstream's own status and words stay in `details` and in the sentence. Pure.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from exocli import BadRequest, ContextOverflow, ExoError, ModelNotFound, Overloaded, UpstreamError

from exo_remote.keys import VARIABLE
from exo_remote.models import listed

MAX_TEXT = 300
_TAGS = re.compile(r"<(script|style|head)\b.*?</\1\s*>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_STATUS: Mapping[Any, int] = {
    "authentication_error": 401,
    "permission_error": 403,
    "rate_limit_error": 429,
    "server_error": 500,
    "unavailable_error": 503,
}
"""What an error's type says where the status line was sent long before."""
_TOO_LONG = ("context_length_exceeded", "exceed_context_size_error")


def of_answer(
    status: int,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tried: Sequence[str] = (),
    key_sent: bool = False,
    names: Sequence[str] = (),
) -> ExoError:
    """The error for an answer that is no reply. `tried`: all the urls, where several were."""
    said, given = _read(body)
    details: dict[str, Any] = {"status": status, "url": url, "upstream": said or None}
    quoted = f": {said}" if said else ""
    if 300 <= status < 400:
        target = headers.get("location", "")
        place = target if target.startswith(("http://", "https://")) else "another place"
        text = f"{url} redirects to {place}, which is not followed: give the final address with -o url=."
        return UpstreamError(text, **{**details, "location": target or None})
    if status in (401, 403):
        way = "refuses this key" if key_sent else "wants a key"
        text = f"{url} {way} ({status}{quoted}); set {VARIABLE}."
        return UpstreamError(text, **details)
    if status in (404, 405):
        if "model" in said.lower():
            there = f"; it has: {listed(names)}" if names else ""
            return ModelNotFound(f"{url} does not have that model ({status}{quoted}){there}.", **details)
        places = " and ".join(tried or (url,))
        text = f"There is nothing at {places} ({status}{quoted}); check -o url=."
        return UpstreamError(text, **details)
    if status == 429:
        wait = retry_after(headers)
        hint = f"try again in {wait:g} s" if wait else "try again later"
        text = f"{url} takes no more requests now (429{quoted}); {hint}."
        return Overloaded(text, **details, retry_after=wait)
    if status in (400, 413, 422):
        return _refused(url, status, said, given, details)
    return UpstreamError(f"{url} failed ({status}{quoted}).", **details)


def of_event(error: Any, url: str) -> ExoError:
    """The error for one that came in the middle of a stream: an object, or only its text."""
    said, given = _of_json({"error": error})
    code = given.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else _STATUS.get(given.get("type"))
    details = {"status": status, "url": url, "upstream": said or None}
    if _is_too_long(given) or given.get("type") == "invalid_request_error":
        return _refused(url, status or 400, said, given, details)
    return UpstreamError(f"{url} broke its reply off{f': {said}' if said else ''}.", **details)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from either form of the header (RFC 9110, section 10.2.3)."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            when = parsedate_to_datetime(text)
        except ValueError:
            return None
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        seconds = (when - datetime.now(UTC)).total_seconds()
    return seconds if 0 <= seconds < 1e7 else None


def is_loading(status: int, body: bytes) -> bool:
    """llama.cpp's server, and others, answer 503 while they load their model."""
    return status == 503 and _read(body)[0].lower().startswith("loading")


def refused_field(status: int, body: bytes, fields: Sequence[str]) -> str | None:
    """Which of the fields a 400 is about, for those that can be left out or renamed."""
    if status not in (400, 422):
        return None
    said, given = _read(body)
    text = f"{given.get('param') or ''} {said}"
    return next((name for name in fields if re.search(rf"\b{name}\b", text)), None)


def _refused(url: str, status: int, said: str, given: Mapping[str, Any], details: dict[str, Any]) -> ExoError:
    text = f"{url} refuses the request ({status}{f': {said}' if said else ''})."
    if _is_too_long(given):
        inner = given.get("details")
        counts = {**given, **(inner if isinstance(inner, Mapping) else {})}
        details = {
            **details,
            "prompt_tokens": counts.get("prompt_tokens", counts.get("n_prompt_tokens")),
            "context": counts.get("context", counts.get("n_ctx")),
        }
        return ContextOverflow(text, **details)
    return BadRequest(text, **details, field=given.get("param"))


def _is_too_long(given: Mapping[str, Any]) -> bool:
    return given.get("code") in _TOO_LONG or given.get("type") in _TOO_LONG


def _read(body: bytes) -> tuple[str, Mapping[str, Any]]:
    """What an error's body says, in one line, and its fields."""
    text = body.decode("utf-8", "replace")
    try:
        return _of_json(json.loads(text))
    except (ValueError, RecursionError):
        return one_line(_plain(text)), {}


def _of_json(data: Any) -> tuple[str, Mapping[str, Any]]:
    given = data.get("error", data) if isinstance(data, Mapping) else data
    if isinstance(given, Mapping):
        said = given.get("message") or given.get("detail") or given.get("msg") or given.get("error") or ""
        return one_line(said if isinstance(said, str) else json.dumps(said)), given
    return one_line(given if isinstance(given, str) else json.dumps(given)), {}


def _plain(text: str) -> str:
    """A page of HTML → its title, else its words."""
    if "<" not in text:
        return text
    title = _TITLE.search(text)
    return html.unescape(title[1] if title else _TAGS.sub(" ", text))


def one_line(text: str) -> str:
    line = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(line.split()).rstrip(".")
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"
