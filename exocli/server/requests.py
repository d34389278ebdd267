"""Every request from its arrival to the moment the last rank has left it; cancels with receipts.

One driver task a request reads the session's stream to its Finished, whether or not anyone still listens:
that Finished is the one truth that client, log and metrics report. Knows no API and no HTTP.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from exocli.cancel import CancelToken
from exocli.errors import ExoError
from exocli.runtime.flight import unless_cancelled
from exocli.runtime.loop import describe_error
from exocli.server import spool
from exocli.server.hub import Model
from exocli.server.problems import UnknownRoute
from exocli.types import (
    Event,
    Finished,
    Phase,
    Progress,
    Reasoning,
    Request,
    Status,
    Text,
    ToolCall,
    new_id,
    to_json,
)

ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")
"""What the APIs put before an id in their bodies."""
REMEMBERED = 4096
"""How many finished requests a late cancel is still answered for."""
GRACE_S = 0.5
"""What a cancel's answer waits beyond the session's own deadline."""


class Running:
    """One request. `total` is the prompt's tokens, 0 until known; `api` the route's label; `owner` who
    shares a place in the queue (an address and a key; never shown)."""

    def __init__(self, *, request: Request, model: Model, api: str, client: str, owner: str = "") -> None:
        self.request = request
        self.model = model
        self.api = api
        self.client = client
        self.owner = owner or client
        self.cancel = CancelToken()
        self.started = time.monotonic()
        self.created = int(time.time())
        self._phase: Phase = "queued"
        self.processed = self.total = self.cached = self.tokens = 0
        self.heard = self.started
        """When the engine last gave a sign."""
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.load_s = 0.0
        """How long it waited for its model to load."""
        self._loading_since: float | None = None
        self.finished: Finished | None = None
        self.checked = asyncio.Event()
        """Set once nothing is left to find wrong before the first byte."""
        self.done = asyncio.Event()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def phase(self) -> Phase:
        """The session knows first: a prefill begins before its first chunk is done."""
        session = self.model.opened
        flight = session.flights.get(self.id) if session is not None else None
        return flight.phase if flight is not None else self._phase

    def leave(self) -> None:
        """The client is gone: its work stops wherever it is."""
        if self.finished is None:
            self.cancel.cancel("the client left")

    def put(self, event: Event) -> float | None:
        """Note what happened; seconds since the token before, if this is one."""
        now = self.heard = time.monotonic()
        gap: float | None = None
        self._note_loading(event, now)
        match event:
            case Progress(processed=processed, total=total, cached=cached):
                self._phase = "prefill"
                self.processed, self.total, self.cached = processed, total, cached
            case Text() | Reasoning() | ToolCall():
                self._phase = "decode"
                self.tokens += 1
                gap = now - self.last_token if self.last_token is not None else None
                self.first_token = self.first_token or now
                self.last_token = now
            case Status(phase=phase):
                self._phase = phase
            case Finished():
                self.finished = event
                self.checked.set()
                self.done.set()
        self._queue.put_nowait(event)
        return gap

    def _note_loading(self, event: Event, now: float) -> None:
        if isinstance(event, Status) and event.phase == "loading":
            self._loading_since = self._loading_since or now
        elif self._loading_since is not None and self.model.opened is not None:
            self.load_s = max(self.load_s, self.model.opened.loaded_at - self._loading_since)

    async def batches(self, keepalive: float | None = None) -> AsyncIterator[list[Event]]:
        """Everything, Finished last, all that is there at a time; [] after each `keepalive` seconds of
        silence."""
        ended = False
        while not ended:
            events: list[Event] = []
            with suppress(TimeoutError):
                async with asyncio.timeout(keepalive if self._queue.empty() else None):
                    events.append(await self._queue.get())
            while not self._queue.empty():
                events.append(self._queue.get_nowait())
            ended = any(isinstance(event, Finished) for event in events)
            yield events

    async def events(self) -> AsyncIterator[Event]:
        """Everything one by one, Finished last."""
        async for batch in self.batches():
            for event in batch:
                yield event

    def summary(self) -> dict[str, Any]:
        """A row of `/v1/requests`."""
        return {
            "id": self.id,
            "client": self.client,
            "api": self.api,
            "model": self.model.name,
            "phase": self.phase,
            "processed": self.processed,
            "total": self.total,
            "tokens": self.tokens,
            "age_s": round(time.monotonic() - self.started, 3),
        }


class Registry:
    """What runs, and for a while what ran. `on_token(running, gap)` and `on_finished(running)` are told."""

    def __init__(
        self,
        on_token: Callable[[Running, float], None] = lambda running, gap: None,
        on_finished: Callable[[Running], None] = lambda running: None,
    ) -> None:
        self.running: dict[str, Running] = {}
        self._over: OrderedDict[str, Finished] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_token = on_token
        self._on_finished = on_finished
        self._empty = asyncio.Event()
        self._empty.set()

    def choose_id(self, wanted: str | None) -> str:
        """The client's own, if it is well-formed and not in flight; else a fresh one."""
        if wanted is not None and ID.fullmatch(wanted) and self.find(wanted) is None:
            return wanted
        return new_id()

    def start(self, running: Running, timeout: float | None = None) -> None:
        """Raises Overloaded, with nothing started, if its model's queue is full. `timeout` in seconds."""
        running.model.admit()
        self.running[running.id] = running
        self._empty.clear()
        running.model.entered(running.id)
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(timeout, running.cancel.cancel, "deadline") if timeout else None
        task = loop.create_task(self._drive(running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if deadline is not None:
            task.add_done_callback(lambda _: deadline.cancel())

    async def _drive(self, running: Running) -> None:
        finished: Finished | None = None
        try:
            session = await running.model.session()
            if session.loaded:
                prepared = await unless_cancelled(session.prepare(running.request), running.cancel)
                running.total = prepared.prompt_tokens if prepared is not None else 0
            running.checked.set()
            async for event in session.stream(running.request, running.cancel, running.owner):
                if isinstance(event, Finished):
                    finished = event
                elif (gap := running.put(event)) is not None:
                    self._on_token(running, gap)
        except ExoError as error:
            finished = Finished(id=running.id, reason="error", error=error.to_dict())
        except Exception as error:
            finished = Finished(id=running.id, reason="error", error=describe_error(error))
        assert finished is not None  # the session's promise: exactly one, always last
        self._finish(running, finished)

    def _finish(self, running: Running, finished: Finished) -> None:
        del self.running[running.id]
        self._over[running.id] = finished
        while len(self._over) > REMEMBERED:
            self._over.popitem(last=False)
        running.model.left(running.id, finished)
        spool.discard(running.request)
        running.put(finished)
        if not self.running:
            self._empty.set()
        self._on_finished(running)

    # ---------------------------------------------------------------------------------- cancels

    async def cancel(self, text: str) -> tuple[int, dict[str, Any]]:
        """The status and body of the answer. `text` is an id, with or without an API's prefix.

        200 once every rank has left it, 202 while one does not answer. Raises UnknownRoute (404)."""
        running = self.find(text)
        if running is not None:
            return await self._cancel(running)
        for key in _forms(text):
            if key in self._over:
                return 200, _over(self._over[key])
        raise UnknownRoute(f'No request "{text}" is known; "exo ps" or GET /v1/requests lists what runs.')

    async def cancel_all(self) -> list[dict[str, Any]]:
        answers = await asyncio.gather(*(self._cancel(one) for one in list(self.running.values())))
        return [body for _, body in answers]

    async def _cancel(self, running: Running) -> tuple[int, dict[str, Any]]:
        running.cancel.cancel("cancelled by id")
        session = running.model.opened
        with suppress(TimeoutError):
            async with asyncio.timeout((session.cancel_deadline if session else 2.0) + GRACE_S):
                await running.done.wait()
        finished = running.finished
        if finished is None:
            waiting = session.waiting_for(running.id) if session else None
            body = {"id": running.id, "state": "cancelling", "phase": running.phase}
            return 202, {**body, "waiting_for": waiting} if waiting else body
        if finished.cancel is None:
            return 200, _over(finished)
        return 200, {"id": running.id, "state": "cancelled", **to_json(finished.cancel)}

    def find(self, text: str) -> Running | None:
        """The running request of this id, in either form."""
        return next((self.running[key] for key in _forms(text) if key in self.running), None)

    # ----------------------------------------------------------------------------------- ending

    def stop_all(self, reason: str) -> None:
        for running in list(self.running.values()):
            running.cancel.cancel(reason)

    async def wait_empty(self, timeout: float) -> bool:
        """True once nothing runs; False if that takes longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True


def _forms(text: str) -> list[str]:
    """An id as it was given, then without an API's prefix."""
    return [text, *(text.removeprefix(prefix) for prefix in PREFIXES if text.startswith(prefix))]


def _over(finished: Finished) -> dict[str, Any]:
    body = {"id": finished.id, "state": "finished", "reason": finished.reason}
    return {**body, **to_json(finished.cancel)} if finished.cancel else body


def receipt_of(finished: Finished, cancel: CancelToken) -> dict[str, Any]:
    """What a truncated reply carries under `exo`."""
    return {"cancel": {**to_json(finished.cancel), "reason": cancel.reason}} if finished.cancel else {}
