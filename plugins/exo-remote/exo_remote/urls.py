"""Server addresses as people write them → where its routes are. Pure: no network, no names looked up."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from exocli import UsageError

DEFAULT = "http://127.0.0.1:52415"
"""Where `exo serve` listens on this machine."""
_ROUTES = ("/chat/completions", "/completions", "/models", "/api/chat", "/api/generate")


@dataclass(frozen=True, slots=True)
class Base:
    """`home`: scheme, host, port and sub-path, with no slash at the end; what servers have beside OpenAI's
    routes (`/slots`, `/api/…`) hangs there. `roots`: where OpenAI's routes may be, likeliest first.
    `host` as it was written, for messages. `loopback`: this machine, which no proxy can reach for us."""

    home: str
    roots: tuple[str, ...]
    host: str
    loopback: bool

    @property
    def secure(self) -> bool:
        return self.home.startswith("https:")


def parse(text: str) -> Base:
    """`host:port`, `http://host`, `…/`, `…/v1`, `…/sub/path`, a whole route: all mean the server.
    Empty: EXO_URL, else exo's default port. Raises UsageError, which never repeats a password."""
    text = (text or os.environ.get("EXO_URL", "") or DEFAULT).strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError:
        port, host, parts = None, None, urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise UsageError("The server's url must not hold a name or a password: set EXO_REMOTE_API_KEY.")
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise UsageError(f'"{text}" is not a server\'s url: give one like http://127.0.0.1:8080.')
    shown = f"[{host}]" if ":" in host else host
    netloc = f"{shown}:{port}" if port is not None else shown
    origin = f"{parts.scheme}://{netloc}"
    path = parts.path.rstrip("/")
    for route in _ROUTES:
        path = path.removesuffix(route).rstrip("/")
    if path.endswith("/v1"):
        home = origin + path.removesuffix("/v1")
        roots: tuple[str, ...] = (origin + path,)
    else:
        home = origin + path
        roots = (f"{home}/v1", home) if path else (f"{home}/v1",)
    return Base(home=home, roots=roots, host=netloc, loopback=is_loopback(host))


def is_loopback(host: str) -> bool:
    """By its name: `localhost`, `*.localhost`, 127.0.0.0/8, ::1."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)
