"""One server over httpx: connections, retries, timeouts, trust. The only file that knows httpx.

What goes over them is messages.py's, what answers mean problems.py's.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from exocli import ExoError, Unavailable, UpstreamError, UsageError

from exo_remote.keys import Key
from exo_remote.options import Options
from exo_remote.urls import Base

WRITE_S = 60.0
POOL = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=4.0)
"""Idle connections are given up before common servers (5 s and more) close them under us."""
BACKOFF_S = 0.2
STALE_S = 2.0
"""How soon a connection that the server had closed while it was idle shows it. What breaks later, or is new,
may have begun the request."""
MAX_ERROR_BODY = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `data` is its JSON, None where it is none."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    data: Any


class Refused(Exception):
    """An answer that is no reply, not yet judged: it may be asked again in another way."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Client:
    """All methods belong to one event loop; `aclose` ends it. `key` may change between requests."""

    def __init__(self, base: Base, options: Options, key: Key) -> None:
        """Raises UsageError for a CA file that cannot be used, or a proxy variable that makes no sense."""
        self.base = base
        self.key = key
        self._retries = options.retries
        self._connect_s = options.connect_timeout
        self._proxy = _proxy_for(base)
        try:
            transport = httpx.AsyncHTTPTransport(
                verify=_trust(base, options.ca_file),
                proxy=self._proxy,
                limits=POOL,
                socket_options=_KEEPALIVE,
                trust_env=False,
            )
        except (ValueError, ImportError) as error:
            raise UsageError(f"The proxy for {base.home} cannot be used: {error}.") from None
        self._http = httpx.AsyncClient(
            transport=transport,
            trust_env=False,
            timeout=httpx.Timeout(None, connect=options.connect_timeout, write=WRITE_S),
            follow_redirects=False,
            headers={"User-Agent": "exo"},
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def get(self, url: str, timeout: float) -> Answer:
        """Raises Unavailable where no connection is made, UpstreamError where it breaks; TimeoutError."""
        async with asyncio.timeout(timeout):
            return await self._whole("GET", url, None)

    async def post(self, url: str, data: Any, timeout: float) -> Answer:
        """As `get`."""
        async with asyncio.timeout(timeout):
            return await self._whole("POST", url, data)

    async def _whole(self, method: str, url: str, data: Any) -> Answer:
        response = await self._send(method, url, data, {})
        try:
            return await _read(response, None)
        except httpx.HTTPError as error:
            raise self.broken(error, url) from None
        finally:
            await response.aclose()

    @asynccontextmanager
    async def reply(self, url: str, data: Any, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """POST, and the streaming response once its head is there. Leaving closes the connection, unless
        the response was read to its end. Raises Refused for any status but 200."""
        response = await self._send("POST", url, data, headers)
        try:
            if response.status_code != 200:
                raise Refused(await _read(response, MAX_ERROR_BODY))
            yield response
        except httpx.HTTPError as error:
            raise self.broken(error, url) from None
        finally:
            await response.aclose()

    async def _send(self, method: str, url: str, data: Any, headers: Mapping[str, str]) -> httpx.Response:
        """The response's head. Asks again where the server cannot have begun: no connection was made, or
        one that had been idle turned out to be closed."""
        attempt = 0
        while True:
            fresh = False

            async def trace(event: str, info: Any) -> None:
                nonlocal fresh
                fresh = fresh or event.startswith("connection.connect")

            sent = {"Authorization": f"Bearer {self.key.value}"} if self.key.value else {}
            began = time.monotonic()
            request = self._http.build_request(
                method, url, json=data, headers={**sent, **headers}, extensions={"trace": trace}
            )
            try:
                return await self._http.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
                problem: ExoError = self._unreachable(error)
                again = attempt < self._retries and not _is_trust(error)
            except httpx.HTTPError as error:
                problem = self.broken(error, url)
                again = not fresh and attempt == 0 and time.monotonic() - began < STALE_S
            if not again:
                raise problem
            await asyncio.sleep(BACKOFF_S * 2**attempt)
            attempt += 1

    # ----------------------------------------------------------------------------------- problems

    def _unreachable(self, error: Exception) -> ExoError:
        home = self.base.home
        if _is_trust(error):
            text = (
                f"The certificate of {home} is not trusted: {_reason(error)}; "
                "if its authority is your own, name its file with -o ca_file=."
            )
            return Unavailable(text, url=home)
        through = ""
        if self._proxy is not None:
            through = f" through the proxy {httpx.URL(self._proxy).host}"
        reason = _reason(error) or f"no connection within {self._connect_s:g} s"
        return Unavailable(f"No server answers at {home}{through}: {reason}.", url=home)

    def broken(self, error: Exception, url: str) -> ExoError:
        """A connection that was made, and then failed."""
        reason = _reason(error) or "it went silent"
        return UpstreamError(f"The connection to {self.base.home} broke off: {reason}.", url=url)


def _notice_lost_peers() -> list[tuple[int, int, int]]:
    """A server whose machine went away sends nothing, ever; the kernel asks after it."""
    found = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            found.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return found


_KEEPALIVE = _notice_lost_peers()


def _proxy_for(base: Base) -> str | None:
    """From HTTP_PROXY and its like, NO_PROXY respected; never for this machine itself."""
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    proxy = proxies.get("https" if base.secure else "http") or proxies.get("all")
    if not proxy or base.loopback or proxy_bypass(base.host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _trust(base: Base, ca_file: str) -> ssl.SSLContext | bool:
    """The usual authorities (certifi's; SSL_CERT_FILE is honoured) and the user's own."""
    if not base.secure and not ca_file:
        return False  # loading them takes time, and there is nothing to verify
    context = httpx.create_ssl_context()
    if ca_file:
        try:
            context.load_verify_locations(Path(ca_file).expanduser())
        except OSError as error:
            bad = "it holds no certificate in PEM form"
            reason = bad if isinstance(error, ssl.SSLError) else error.strerror or error
            raise UsageError(f"ca_file {ca_file} cannot be used: {reason}.") from None
    return context


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_trust(error: Exception) -> bool:
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error))


def _reason(error: Exception) -> str:
    """The deepest reason that says something, in a few words."""
    text = ""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        if isinstance(cause, OSError) and cause.strerror:
            named = cause.errno in errno.errorcode and not isinstance(cause, socket.gaierror)
            text = os.strerror(cause.errno) if named and cause.errno else cause.strerror
        text = text or " ".join(str(cause).split())
    return text.rstrip(".")


async def _read(response: httpx.Response, most: int | None) -> Answer:
    """The body, as far as it is wanted."""
    pieces, size = [], 0
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        size += len(piece)
        if most is not None and size >= most:
            break
    body = b"".join(pieces)
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    return Answer(response.status_code, response.headers, body, data)
