"""A server that says exactly what a test scripts, byte by byte, over real sockets.

Each route is a coroutine that gets the request and the connection; requests are kept for the test to
look at.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

SSE = {"Content-Type": "text/event-stream"}


@dataclass
class Asked:
    """A request. `closed` is set when its connection is closed by the client."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: Asked) -> None:
        self.writer = writer
        self.asked = asked
        self.kept = False

    async def head(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """A body of unknown length follows: it ends with the connection."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**SSE, **(headers or {})}.items())
        await self.send(f"HTTP/1.1 {status} X\r\nConnection: close\r\n{lines}\r\n".encode())

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def stream(self, *chunks: Any) -> None:
        """SSE events, each a JSON value or a string as it stands."""
        for chunk in chunks:
            text = chunk if isinstance(chunk, str) else json.dumps(chunk)
            await self.send(f"data: {text}\n\n".encode())

    async def whole(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, keep: bool = False
    ) -> None:
        given = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self.kept = keep
        await self.send(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body)

    async def json(self, data: Any, status: int = 200, **more: Any) -> None:
        await self.whole(status, json.dumps(data).encode(), **more)

    def reset(self) -> None:
        """RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Handler = Callable[[Asked, Connection], Awaitable[None]]


class Upstream:
    """`async with Upstream({"/v1/chat/completions": handler}) as up`. Lists the model "m" unless told
    otherwise; answers 404 in OpenAI's form to what it does not know."""

    def __init__(
        self,
        routes: dict[str, Handler] | None = None,
        *,
        models: Iterable[dict[str, Any]] | None = ({"id": "m"},),
        listing: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        async def list_models(asked: Asked, connection: Connection) -> None:
            await connection.json({"object": "list", "data": list(models or ())}, headers=listing)

        self.routes: dict[str, Handler] = {"/v1/models": list_models} if models is not None else {}
        self.routes.update(routes or {})
        self.asked: list[Asked] = []
        self.connections = 0
        self._tls = tls
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()
        self._more = asyncio.Condition()

    async def __aenter__(self) -> Upstream:
        self._server = await asyncio.start_server(self._serve, self._host, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{'https' if self._tls else 'http'}://{host}:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._one(reader, writer):
                    pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, path, headers, body)
        async with self._more:
            self.asked.append(asked)
            self._more.notify_all()
        connection = Connection(reader, writer, asked)
        watch = asyncio.create_task(self._watch(reader, asked))
        try:
            await self.routes.get(path, _unknown)(asked, connection)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        return connection.kept

    async def _watch(self, reader: asyncio.StreamReader, asked: Asked) -> None:
        """Nothing more is sent by a client that waits: what can be read is the end."""
        while not reader.at_eof():
            if reader.exception() is not None:
                break
            await asyncio.sleep(0.005)
        asked.closed.set()

    async def wait_for(self, path: str, count: int = 1) -> Asked:
        """The count-th request for this path, as soon as it is there."""
        async with self._more:
            await asyncio.wait_for(
                self._more.wait_for(lambda: sum(a.path == path for a in self.asked) >= count), 10
            )
        return [a for a in self.asked if a.path == path][count - 1]


async def _unknown(asked: Asked, connection: Connection) -> None:
    await connection.json({"error": {"message": "Not Found"}}, 404)


# ------------------------------------------------------------------------------------- common scripts

CHAT = "/v1/chat/completions"


def delta(content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of Chat Completions."""
    said = {"content": content} if content is not None else {}
    return {"choices": [{"index": 0, "delta": {**said, **more}, "finish_reason": finish}]}


def says(*chunks: Any, headers: dict[str, str] | None = None) -> Handler:
    """Answers a stream of these chunks and ends the connection."""

    async def answer(asked: Asked, connection: Connection) -> None:
        await connection.head(headers=headers)
        await connection.stream(*chunks)

    return answer


def sends(*pieces: bytes, headers: dict[str, str] | None = None) -> Handler:
    """Answers these bytes, each in a write of its own."""

    async def answer(asked: Asked, connection: Connection) -> None:
        await connection.head(headers=headers)
        for piece in pieces:
            await connection.send(piece)
            await asyncio.sleep(0)

    return answer


def refuses(status: int, body: bytes, **headers: str) -> Handler:
    async def answer(asked: Asked, connection: Connection) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        await connection.whole(status, body, given)

    return answer


def hangs(*chunks: Any) -> Handler:
    """Sends these and then nothing, until the client leaves."""

    async def answer(asked: Asked, connection: Connection) -> None:
        await connection.head()
        await connection.stream(*chunks)
        await asked.closed.wait()

    return answer


async def mute(asked: Asked, connection: Connection) -> None:
    """Not even a head."""
    await asked.closed.wait()
