"""The sockets of `exo serve`: bound and listening before anything is loaded, so that a busy port is told
at once. Knows nothing of HTTP."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

from exocli.errors import ExoError, UsageError

BACKLOG = 512
UNACKNOWLEDGED_MS = 60_000
"""After this long without an answer from its machine, a client counts as gone."""


class PortBusy(ExoError):
    code = "port_busy"


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address of `host` ("localhost" is both 127.0.0.1 and ::1), all on one
    port; port 0 takes a free one. Raises PortBusy, UsageError."""
    # Whatever the hosts file says: clients try both.
    names = ("127.0.0.1", "::1") if host == "localhost" else (host,)
    try:
        found = [
            one
            for name in names
            for one in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ]
    except (socket.gaierror, UnicodeError):
        raise UsageError(f'"{host}" is not an address of this machine.') from None
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((f, a) for f, _, _, _, a in found):
            chosen = sockets[0].getsockname()[1] if sockets and port == 0 else port
            with suppress(_NotHere):
                sockets.append(_one(family, (address[0], chosen, *address[2:]), bool(sockets)))
    except BaseException:
        for one in sockets:
            one.close()
        raise
    if not sockets:
        raise UsageError(f'"{host}" is not an address of this machine.')
    return sockets


class _NotHere(Exception):
    """An address that this machine does not have (IPv6 switched off)."""


def _one(family: int, address: tuple[object, ...], further: bool) -> socket.socket:
    try:
        # asyncio turns Nagle's algorithm off only where the protocol is named; with it a stream stutters.
        one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError:
        raise _NotHere from None
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        _notice_lost_clients(one)
        one.bind(address)
        one.listen(BACKLOG)
    except OSError as error:
        one.close()
        if error.errno == errno.EADDRINUSE:
            text = f"Port {address[1]} of {address[0]} is in use: stop what holds it, or give another --port."
            raise PortBusy(text) from None
        if error.errno == errno.EACCES:
            raise UsageError(
                f"Port {address[1]} needs privileges; choose one above 1023 with --port."
            ) from None
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and (
            further or family == socket.AF_INET6
        ):
            raise _NotHere from None
        raise UsageError(f'"{address[0]}" is not an address of this machine.') from None
    one.setblocking(False)
    return one


def _notice_lost_clients(one: socket.socket) -> None:
    """A client whose machine or network went away sends no FIN; accepted sockets inherit these."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS),
    ):
        if hasattr(socket, name):
            with suppress(OSError):
                one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def url_of(one: socket.socket) -> str:
    host, port = one.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
