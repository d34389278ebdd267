"""Who may ask: keys, the Host check against DNS rebinding, and CORS. Pure decisions, then one ASGI layer."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exocli.errors import UsageError
from exocli.server.problems import Forbidden, Unauthorized

OPEN = frozenset({"/", "/health", "/ready"})
OPEN_PREFIX = "/web/"
"""Paths that ask for no key: a page, its files and two states, none of which show a request's text."""
SUFFIXES = (".local", ".localhost", ".internal")
METHODS = "GET, POST, DELETE, HEAD, OPTIONS"
SHORTEST_KEY = 8


class Keys:
    """The keys that are accepted. Comparing takes the same time for every wrong key."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accept(self, headers: Headers) -> bool:
        if not self._digests:
            return True
        given = hashlib.sha256(given_key(headers).encode("utf-8", "surrogateescape")).digest()
        # No early exit: how long it takes must not tell which key came close.
        return sum([hmac.compare_digest(given, digest) for digest in self._digests]) > 0


def given_key(headers: Headers) -> str:
    """As the client sent it, in either header; "" for none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key else headers.get("x-api-key", "")


def read_keys(text: str, where: str) -> tuple[str, ...]:
    """One key a line; empty lines and those that begin with # are left out. Raises UsageError, which
    never quotes a key."""
    keys = [line.strip() for line in text.splitlines()]
    keys = [key for key in keys if key and not key.startswith("#")]
    for key in keys:
        if len(key) < SHORTEST_KEY or not re.fullmatch(r"[\x21-\x7e]+", key):
            text = f"{where} holds a key that is shorter than {SHORTEST_KEY} characters or not plain ASCII."
            raise UsageError(text)
    return tuple(keys)


# ---------------------------------------------------------------------------------------- Host


def host_of(value: str) -> str:
    """`name:8080`, `[::1]:8080` → the name alone, in lower case."""
    value = value.strip().lower()
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.rpartition(":")[0] if value.count(":") == 1 else value


def host_allowed(host: str, allowed: Iterable[str], own: str | None = None) -> bool:
    """Names that cannot be a stranger's: a page of evil.example that resolves to this machine says
    `Host: evil.example`. `own` is the address that the connection came in on."""
    name = host_of(host).rstrip(".")
    if name == "localhost" or name.endswith(SUFFIXES) or name == (own or "").lower():
        return True
    try:
        address = ipaddress.ip_address(name)
        return address.is_private or address.is_loopback
    except ValueError:
        pass
    machine = socket.gethostname().lower()
    return name in (machine, machine.partition(".")[0]) or name in {host_of(entry) for entry in allowed}


def is_loopback(host: str) -> bool:
    """May `--host` be used without a key?"""
    if host in ("localhost", ""):
        return host == "localhost"
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


# ---------------------------------------------------------------------------------------- CORS


def origin_allowed(origin: str, host: str, allowed: Iterable[str]) -> bool:
    """The page's own origin, loopback ones, and what `--cors-origin` names."""
    entries = {entry.rstrip("/").lower() for entry in allowed}
    if "*" in entries or origin.lower() in entries:
        return True
    try:
        parts = urlsplit(origin)
        name = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme not in ("http", "https"):
        return False
    if parts.netloc.lower() == host.lower():
        return True
    return name.endswith(".localhost") or is_loopback(name)


class Guard:
    """The layer before the routes. Refuses by raising; the outermost layer gives that its shape."""

    def __init__(
        self, app: ASGIApp, keys: Iterable[str], allow_hosts: Iterable[str], cors_origins: Iterable[str]
    ) -> None:
        self._app = app
        self._keys = Keys(keys)
        self._hosts = tuple(allow_hosts)
        self._origins = tuple(cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        own = scope["server"][0] if scope.get("server") else None
        if host and not host_allowed(host, self._hosts, own):
            name = host_of(host)[:100]
            text = f'The name "{name}" is not one of this server; allow it with --allow-host {name}.'
            raise Forbidden(text, host=name)
        origin = headers.get("origin")
        cors: dict[str, str] = {}
        if origin is not None:
            if not origin_allowed(origin, host, self._origins):
                text = f'Pages of "{origin[:100]}" may not use this server; allow them with --cors-origin.'
                raise Forbidden(text, origin=origin[:100])
            cors = _cors_headers(origin)
            scope["exo.cors"] = cors  # so that errors raised further in carry them too
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await _preflight(headers, cors, send)
                return
        free = scope["path"] in OPEN or scope["path"].startswith(OPEN_PREFIX)
        if not free and not self._keys.accept(headers):
            raise Unauthorized("A valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY.")
        await self._app(scope, receive, with_headers(send, cors) if cors else send)


def _cors_headers(origin: str) -> dict[str, str]:
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "X-Request-Id, Request-Id, Retry-After",
        "Vary": "Origin",
    }


async def _preflight(headers: Headers, cors: Mapping[str, str], send: Send) -> None:
    answer = {
        **cors,
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "*"),
        "Access-Control-Max-Age": "600",
    }
    raw = [(key.lower().encode(), value.encode("latin-1")) for key, value in answer.items()]
    await send({"type": "http.response.start", "status": 204, "headers": raw})
    await send({"type": "http.response.body", "body": b""})


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """`send`, with these headers on the response."""
    raw = [(key.lower().encode(), value.encode("latin-1")) for key, value in headers.items()]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *raw]}
        await send(message)

    return sending
