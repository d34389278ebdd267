"""The outermost ASGI layer: request ids, errors in the API's shape, the end of every exchange, the log.

Whatever happens further in, here the exchange is over, and whoever runs for it is told to leave.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
import traceback
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exocli.errors import ExoError
from exocli.server.access_log import GONE, AccessLog
from exocli.server.auth import with_headers
from exocli.server.body import ClientGone
from exocli.server.metrics import Metrics
from exocli.server.problems import UnknownRoute, WrongMethod, api_of, body_of, encode, headers_of
from exocli.server.requests import ID, Running
from exocli.types import new_id


class Outermost:
    def __init__(self, app: ASGIApp, log: AccessLog, metrics: Metrics, debug: bool) -> None:
        self._app = app
        self._log = log
        self._metrics = metrics
        self._debug = debug
        self._late: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = GONE

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not any(key == b"x-request-id" for key, _ in message.get("headers", ())):
                    raw = (b"x-request-id", self._id(scope).encode("ascii"))
                    message = {**message, "headers": [*message.get("headers", ()), raw]}
                if self._api(scope) == "anthropic":  # what its clients read
                    raw = (b"request-id", self._id(scope).encode("ascii"))
                    message = {**message, "headers": [*message["headers"], raw]}
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientGone:
            pass
        except Exception as error:
            if status == GONE:
                await self._answer(scope, error, sending)
            else:
                self._tell(error)
                raise  # uvicorn closes the connection: a reply that broke must not look whole
        finally:
            running: Running | None = scope.get("exo.running")
            if running is not None:
                running.leave()
            self._metrics.on_response(status)
            self._write(scope, status, started, running)

    async def _answer(self, scope: Scope, error: Exception, send: Send) -> None:
        if isinstance(error, HTTPException):  # starlette's router
            more = dict(error.headers or {})
            found: ExoError = _no_route(scope, error.status_code, more)
        elif isinstance(error, ExoError):
            found, more = error, {}
        else:
            self._tell(error)
            found, more = ExoError("The server failed at this request; its log says why."), {}
        headers = {**headers_of(found), **more, **scope.get("exo.cors", {})}
        body = encode(body_of(found, self._api(scope), self._id(scope)))
        headers["Content-Length"] = str(len(body))
        headers["Content-Type"] = "application/json"
        sending = with_headers(send, headers)
        await sending({"type": "http.response.start", "status": found.http_status, "headers": []})
        await sending({"type": "http.response.body", "body": body if scope["method"] != "HEAD" else b""})

    def _api(self, scope: Scope) -> str:
        return api_of(scope["path"], Headers(scope=scope))

    def _id(self, scope: Scope) -> str:
        """The running request's, else the client's own, else a fresh one."""
        running: Running | None = scope.get("exo.running")
        if running is not None:
            return running.id
        if "exo.id" not in scope:
            given = next((v for k, v in scope["headers"] if k == b"x-request-id"), b"")
            text = given.decode("latin-1")
            scope["exo.id"] = text if ID.fullmatch(text) else new_id()
        found: str = scope["exo.id"]
        return found

    def _tell(self, error: Exception) -> None:
        text = " ".join(str(error).split())
        self._log.line("failure", error=type(error).__name__, message=text)
        if self._debug:
            traceback.print_exception(error, file=sys.stderr)

    def _write(self, scope: Scope, status: int, started: float, running: Running | None) -> None:
        seconds = time.monotonic() - started
        client = scope["client"][0] if scope.get("client") else "unknown"
        path = scope.get("raw_path", b"").decode("latin-1").partition("?")[0] or scope["path"]

        def write() -> None:
            self._log.exchange(
                client=client,
                method=scope["method"],
                path=path,
                status=status,
                seconds=seconds,
                running=running,
            )

        async def later(waiting: Running) -> None:
            await waiting.done.wait()
            write()

        if running is None or running.finished is not None:
            write()
        else:
            task = asyncio.get_running_loop().create_task(later(running))
            self._late.add(task)
            task.add_done_callback(self._late.discard)


def _no_route(scope: Scope, status: int, headers: Mapping[str, str]) -> ExoError:
    """What the router found wrong; a base URL with one /v1 too few or too many is told what would do."""
    method, path = scope["method"], scope["path"]
    if status == 405:
        return WrongMethod(f"{path[:200]} takes {headers.get('Allow', 'other methods')}, not {method}.")
    known = {getattr(route, "path", None) for route in scope["app"].routes}
    tail = re.sub(r"^(/+(v1|api))+(?=/)", "", path)
    hint = next((f": {root}{tail} is" for root in ("/v1", "/api") if f"{root}{tail}" in known), "")
    return UnknownRoute(f"{method} {path[:200]} is not a route of this server{hint}.")
