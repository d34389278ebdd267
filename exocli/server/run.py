"""Runs the application until it is told to stop, and stops it by the contract's table.

First SIGINT or SIGTERM: no new work, what runs may finish within the drain timeout, the rest is cancelled
with a proper end of its stream. Another one: cancel now. Another one while cancelling: end the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence

import uvicorn
from starlette.applications import Starlette

from exocli.server.access_log import AccessLog
from exocli.server.state import State

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LEAVE_S = 10.0
"""How long cancelled requests may take to leave before the workers are ended."""
FLUSH_S = 5
"""How long open connections may take to read their last bytes."""


class _Server(uvicorn.Server):
    """uvicorn without its own idea of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(app: Starlette, sockets: Sequence[socket.socket], log: AccessLog) -> None:
    """Blocks until the server has ended."""
    asyncio.run(_serve(app, list(sockets), log))


def _server(app: Starlette) -> _Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="on",
        ws="none",
        http="h11",
        loop="asyncio",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=FLUSH_S,
    )
    return _Server(config)


@contextlib.asynccontextmanager
async def running(app: Starlette, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """The same server within the caller's loop, without signals; at the end it closes at once."""
    server = _server(app)
    serving = asyncio.create_task(server.serve(list(sockets)))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def _serve(app: Starlette, sockets: list[socket.socket], log: AccessLog) -> None:
    server = _server(app)
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, signalled.set)
    serving = loop.create_task(server.serve(sockets))
    ending = loop.create_task(_end(app.state.exo, server, signalled, log))
    try:
        await serving
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _end(state: State, server: uvicorn.Server, signalled: asyncio.Event, log: AccessLog) -> None:
    await signalled.wait()
    try:
        await _drain(state, server, signalled, log)
    finally:
        server.should_exit = True


async def _drain(state: State, server: uvicorn.Server, signalled: asyncio.Event, log: AccessLog) -> None:
    """Until nothing runs any more, or nothing more can be done about it."""
    signalled.clear()
    state.leaving = True
    for listener in server.servers if server.started else ():
        listener.close()
    log.line("stopping", running=len(state.requests.running), drain_timeout=state.settings.drain_timeout)
    await _first_of(state.requests.wait_empty(state.settings.drain_timeout), signalled.wait())
    signalled.clear()
    if state.requests.running:
        log.line("cancelling", running=len(state.requests.running))
        state.requests.stop_all("the server is stopping")
        await _first_of(state.requests.wait_empty(LEAVE_S), signalled.wait())
    if state.requests.running:
        await state.hub.kill()
        await state.requests.wait_empty(1.0)


async def _first_of(*works: object) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]  # type: ignore[call-overload]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
