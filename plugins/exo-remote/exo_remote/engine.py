"""The engine: a request's events from a server, its cancels with what the server said of them.

Ties the parts together: exchange.py reads, stopping.py stops, discover.py knows the server. Runs on the
core's asyncio loop; a token may be cancelled from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from exocli import (
    Cancelled,
    CancelToken,
    Event,
    ExoError,
    Finished,
    OpenContext,
    Receipt,
    Request,
    Status,
    StreamEngine,
    Unavailable,
    UpstreamError,
    Usage,
)

from exo_remote import models, stopping
from exo_remote.client import Client
from exo_remote.discover import Found, discover
from exo_remote.exchange import Exchange
from exo_remote.keys import Key
from exo_remote.messages import with_defaults
from exo_remote.options import Options
from exo_remote.urls import Base

SILENCE_S = 5.0
"""How often a server that says nothing is told of."""
LAST_WORDS_S = 0.5
"""How long the end of a cancelled reply, with its usage, is waited for."""
FINISHED_S = 2.0
"""The same where the server says that the reply had ended by itself."""

Stop = Literal["stop"]


class RemoteEngine(StreamEngine):
    """One model of one server."""

    def __init__(self, context: OpenContext, base: Base, key: Key, found: Found, model: str) -> None:
        self.capabilities = found.capabilities(model)
        self._options: Options = context.options
        self._defaults = context.defaults
        self._base = base
        self._found = found
        self._model = model
        self._lost = False
        self._refused: set[str] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._client = Client(base, context.options, key)

    def describe(self) -> Mapping[str, Any]:
        return {"server": self._base.home, "model": self._model, **self._found.dialect.describe()}

    async def aclose(self) -> None:
        for reader in tuple(self._ending):
            reader.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._client.aclose()

    async def stream(self, request: Request, cancel: CancelToken) -> AsyncIterator[Event]:
        """Ends with exactly one Finished, an error's too."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Event | Exception | Stop] = asyncio.Queue()

        def ask() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs any more
                loop.call_soon_threadsafe(queue.put_nowait, "stop")

        exchange: Exchange | None = None
        forget = cancel.on_cancel(ask)
        try:
            if self._lost:
                await stopping.until_cancelled(self._rediscover(), cancel)
            exchange = Exchange(
                self._client,
                self._found,
                self._model,
                with_defaults(request, self._defaults),
                self._refused,
            )
            async for event in self._follow(exchange, queue, cancel):
                yield event
        except Cancelled:  # before there was an exchange to stop
            receipt = Receipt(phase="queued", ranks=0, latency_ms=_latency_ms(cancel))
            yield Finished(id=request.id, reason="cancelled", cancel=receipt)
        except ExoError as error:
            self._lost = self._lost or isinstance(error, Unavailable)
            usage = exchange.reply.usage() if exchange is not None else Usage()
            yield Finished(id=request.id, reason="error", error=error.to_dict(), usage=usage)
        finally:
            forget()

    async def _rediscover(self) -> None:
        """After a server was lost, another one may have taken its place."""
        self._found = await discover(self._client, self._options)
        self._refused.clear()
        self._lost = False

    async def _follow(
        self, exchange: Exchange, queue: asyncio.Queue[Event | Exception | Stop], cancel: CancelToken
    ) -> AsyncIterator[Event]:
        reader = asyncio.create_task(_read(exchange, queue)) if not cancel.cancelled else None

        async def close() -> None:
            if reader is not None:
                reader.cancel()
                await asyncio.wait([reader])

        began = time.monotonic()
        heard = False
        try:
            while True:
                try:
                    async with asyncio.timeout(self._patience()):
                        item = await queue.get()
                except TimeoutError:
                    self._check_idle(exchange)
                    if not heard:
                        yield self._silent(exchange, time.monotonic() - began)
                    continue
                if isinstance(item, Exception):
                    raise item
                if item == "stop":
                    yield await self._stop(exchange, queue, cancel, close)
                    return
                heard = True
                if isinstance(item, Finished):
                    self._let_end(reader)
                    reader = None
                    yield item
                    return
                yield item
        finally:
            await close()

    def _let_end(self, reader: asyncio.Task[None] | None) -> None:
        """All has been said; the connection is read to its end, for the next request to use it."""
        if reader is not None:
            self._ending.add(reader)
            reader.add_done_callback(self._ending.discard)

    # ------------------------------------------------------------------------------- silence

    def _patience(self) -> float:
        limit = self._options.idle_timeout
        return min(SILENCE_S, limit) if limit else SILENCE_S

    def _check_idle(self, exchange: Exchange) -> None:
        """Raises UpstreamError. Heartbeats are no progress."""
        limit = self._options.idle_timeout
        if limit and time.monotonic() - exchange.moved_at >= limit:
            text = (
                f"{self._base.home} has made no progress for {limit:g} s, so the request was given up; "
                "-o idle_timeout= changes that."
            )
            raise UpstreamError(text, url=self._base.home, status=504)

    def _silent(self, exchange: Exchange, seconds: float) -> Status:
        what = "accepted the request and is silent" if exchange.arrived else "has not answered yet"
        text = f"{self._base.host} {what}, {seconds:.0f} s"
        return Status(id=exchange.reply.id, phase="queued", text=text)

    # -------------------------------------------------------------------------------- cancel

    async def _stop(
        self,
        exchange: Exchange,
        queue: asyncio.Queue[Event | Exception | Stop],
        cancel: CancelToken,
        close: stopping.Close,
    ) -> Finished:
        """Make the server stop, in its own way; what it writes meanwhile is not shown."""
        reply, how = exchange.reply, self._found.dialect.cancel
        last: Finished | None = None
        receipt: Receipt | None
        if not exchange.sent:
            receipt = stopping.unconfirmed(reply, sent=False)
        elif how == "receipt":
            receipt = await stopping.by_receipt(self._client, reply, exchange.upstream_id, exchange.arrived)
            if receipt is None or receipt.confirmed:
                last = await _last_words(queue, FINISHED_S if receipt is None else LAST_WORDS_S)
            if receipt is None and last is not None and last.reason != "cancelled":
                return last  # it had ended before the cancel arrived
        elif how == "slots":
            receipt = await stopping.by_slots(self._client, reply, close)
        elif how == "abort":
            receipt = await stopping.by_abort(self._client, reply, exchange.upstream_id, close)
        else:
            receipt = stopping.unconfirmed(reply, sent=True)
        await close()
        receipt = receipt or (last.cancel if last is not None else None) or stopping.unconfirmed(reply, True)
        return Finished(
            id=reply.id,
            reason="cancelled",
            usage=last.usage if last is not None else reply.usage(),
            cancel=replace(receipt, latency_ms=_latency_ms(cancel)),
        )


def _latency_ms(cancel: CancelToken) -> float:
    """Since the cancel was asked for."""
    asked = cancel.asked_at
    return round((time.monotonic() - asked) * 1000, 1) if asked is not None else 0.0


async def _read(exchange: Exchange, queue: asyncio.Queue[Event | Exception | Stop]) -> None:
    try:
        async for event in exchange.events():
            queue.put_nowait(event)
    except Exception as error:  # whoever waits for events must learn of it
        queue.put_nowait(error)


async def _last_words(queue: asyncio.Queue[Event | Exception | Stop], seconds: float) -> Finished | None:
    """The reply's own end, if it comes in time."""
    try:
        async with asyncio.timeout(seconds):
            while not isinstance(item := await queue.get(), Finished):
                if isinstance(item, Exception):
                    return None
            return item
    except TimeoutError:
        return None


async def look(base: Base, options: Options, key: Key, cancel: CancelToken) -> Found:
    """`discover` with a client of its own. Raises what it raises, and Cancelled."""
    client = Client(base, options, key)
    try:
        return await stopping.until_cancelled(discover(client, options), cancel)
    finally:
        await client.aclose()


def choose_model(found: Found, wanted: str, base: Base) -> str:
    """Raises ModelNotFound that says which there are."""
    return models.pick(wanted, found.names, base.home, found.dialect.any_model)
