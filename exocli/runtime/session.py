"""The only door to an engine: open(backend, model) → stream(request, cancel).

Queues, measures, opens the engine at first use and again after a lost worker (loader.py). Exactly one
Finished a request, whatever happens. Knows backends by their specs alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from exocli.backend import BackendSpec, Capabilities, ModelRef
from exocli.cancel import CancelToken
from exocli.errors import BadRequest, ExoError, Overloaded, Unavailable
from exocli.runtime.flight import Flight, measured, never_started, unless_cancelled
from exocli.runtime.group import OnLoading, RankGroup
from exocli.runtime.live import Live
from exocli.runtime.loader import Loader, Opening
from exocli.runtime.loop import describe_error
from exocli.runtime.turns import Turns
from exocli.runtime.watchdog import CANCEL_DEADLINE
from exocli.supported import check_supported
from exocli.types import Event, Finished, Prepared, Request, Started, Status


class Session:
    """One backend with one model. Every method belongs to one asyncio loop.

    `max_queue`: how many may wait beyond those that run (None = no bound; then Overloaded).
    `concurrency`: at most this many at once (None = what the engine can do).
    """

    def __init__(
        self,
        *,
        spec: BackendSpec,
        model: str,
        path: str,
        ref: ModelRef | None = None,
        options: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        python: str | None = None,
        concurrency: int | None = None,
        max_queue: int | None = None,
        debug: bool = False,
    ) -> None:
        self.spec = spec
        self.model = model
        self.flights: dict[str, Flight] = {}
        self.idle_since = time.monotonic()
        self._concurrency = concurrency
        self._max_queue = max_queue
        self._loader = Loader(
            Opening(
                spec=spec,
                path=path,
                ref=ref,
                options=dict(options or {}),
                defaults=dict(defaults or {}),
                python=python,
                debug=debug,
            )
        )
        self._turns = Turns(self._limit, self._fits)
        self._prepared: dict[str, tuple[RankGroup, Prepared]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # ------------------------------------------------------------------------------------ facts

    @property
    def loaded(self) -> bool:
        return self._loader.ready is not None

    @property
    def loading(self) -> bool:
        return self._loader.loading

    @property
    def restarts(self) -> int:
        """How often a lost worker was replaced."""
        return self._loader.restarts

    @property
    def loaded_at(self) -> float:
        """time.monotonic() when the engine was last ready."""
        return self._loader.loaded_at

    @property
    def capabilities(self) -> Capabilities:
        """The opened engine's; before that the spec's upper bound."""
        group = self._loader.group
        return group.capabilities if group is not None else self.spec.capabilities

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the engine says of itself (layers, dtype, memory …); {} while not loaded."""
        group = self._loader.ready
        return group.describe if group is not None else {}

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """{rank, host, silent_s, facts} of each rank, the facts being its own; [] while not loaded."""
        group = self._loader.ready
        return group.rank_rows() if group is not None else []

    @property
    def chunk(self) -> int | None:
        """Tokens of a prefill chunk now; None while not loaded."""
        group = self._loader.ready
        return group.chunk if group is not None else None

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks that are processes."""
        group = self._loader.ready
        ranks = group.ranks if group is not None else []
        return [pid for rank in ranks if (pid := getattr(rank, "pid", None)) is not None]

    @property
    def cancel_deadline(self) -> float:
        """Seconds after which an unanswered cancel should be told to whoever asked."""
        group = self._loader.group
        return group.cancel_deadline if group is not None else CANCEL_DEADLINE

    def waiting_for(self, request_id: str) -> str | None:
        """Who has not yet left a cancelled request, in words for a person."""
        group = self._loader.group
        return group.waiting_for(request_id) if group is not None else None

    @property
    def queued(self) -> int:
        return self._turns.waiting

    @property
    def kv_reserved(self) -> int:
        """Tokens of KV cache that the running requests may come to, of `capabilities.kv_tokens`."""
        return self._room_of(self._turns.reserved)

    @property
    def options(self) -> Mapping[str, Any]:
        """What the engine is opened with, as it was given."""
        return self._loader.opening.options

    def like(self, spec: BackendSpec, **options: Any) -> Session:
        """A session of its own with the same model on another engine, with the same options but for those
        given; on another backend with those alone."""
        mine = self._loader.opening
        kept = mine.options if spec.name == self.spec.name else {}
        return Session(
            spec=spec,
            model=self.model,
            path=mine.path,
            ref=mine.ref,
            options={**kept, **options},
            defaults=mine.defaults,
            python=mine.python,
        )

    async def load(self, on_loading: OnLoading | None = None) -> None:
        """Open the engine now, not at the first request. Raises what prevents it."""
        await self._ensure(on_loading)

    async def _ensure(self, on_loading: OnLoading | None = None) -> RankGroup:
        if self._closed:
            raise Unavailable(f"The session with {self.model} is closed.")
        return await self._loader.ensure(on_loading)

    # --------------------------------------------------------------------------------- requests

    def _check(self, request: Request) -> None:
        """Raises Unsupported: of the backend, or once it is open of this model on it."""
        opened = self._loader.group is not None
        check_supported(request, self.capabilities, self.spec.name, self.model if opened else "")

    async def prepare(self, request: Request) -> Prepared:
        """Find everything that is wrong with a request, without starting it. Loads if need be.
        Raises Unsupported, BadRequest, or why the engine is not there. `stream` reuses the answer."""
        self._check(request)
        group = await self._ensure()
        self._check(request)
        prepared = await group.prepare(request)
        self._prepared[request.id] = (group, prepared)
        return prepared

    def forget(self, request_id: str) -> None:
        """Drop what `prepare` found for a request that will not be streamed."""
        self._prepared.pop(request_id, None)

    def admit(self) -> None:
        """Raises Overloaded if the queue is full."""
        # All that are under way count, those too that are still loading or being prepared.
        limit = self._limit()
        if self._max_queue is not None and len(self.flights) >= limit + self._max_queue:
            waiting = max(0, len(self.flights) - limit)
            text = f"The queue is full: {limit} at once, {waiting} waiting. Try again soon."
            raise Overloaded(text, retry_after=1)

    async def stream(
        self, request: Request, cancel: CancelToken | None = None, owner: str = ""
    ) -> AsyncIterator[Event]:
        """Started, then what happens, then exactly one Finished. Leaving early cancels the request.
        Those of one `owner` that wait do not hold up another's.
        Raises only, before Started, Overloaded, and BadRequest for the id of a request that is still in
        flight; every later failure is a Finished("error")."""
        self.admit()
        if request.id in self.flights:
            raise BadRequest(f'A request with the id "{request.id}" is in flight already.', field="id")
        flight = Flight(request=request, cancel=cancel or CancelToken(), owner=owner)
        self.flights[flight.id] = flight
        flight.put(Started(id=flight.id, model=self.model, backend=self.spec.name))
        self._spawn(self._drive(flight))
        try:
            while True:
                event = await flight.queue.get()
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            # The driver goes on until every rank has left; only the reader is gone.
            if flight.finished is None:
                flight.cancel.cancel("the reader left")

    async def _drive(self, flight: Flight) -> None:
        try:
            finished = await self._serve(flight)
        except ExoError as error:
            finished = Finished(id=flight.id, reason="error", error=error.to_dict())
        except Exception as error:
            finished = Finished(id=flight.id, reason="error", error=describe_error(error))
        self._prepared.pop(flight.id, None)
        self.flights.pop(flight.id, None)
        if not self.flights:
            self.idle_since = time.monotonic()
        flight.put(measured(flight, finished))

    async def _serve(self, flight: Flight) -> Finished:
        self._check(flight.request)
        if not self.loaded:
            flight.put(Status(id=flight.id, phase="loading"))
        ready = await self._ready(flight)
        waited = await self._turns.acquire(flight) if ready is not None else None
        if ready is None or waited is None:
            return never_started(flight)
        try:
            if waited or ready[0].error is not None:
                # What was kept has changed meanwhile, or the worker is another one.
                ready = await self._ready(flight)
                if ready is None:
                    return never_started(flight)
            group, prepared = ready
            return await self._follow(flight, group.submit(prepared, flight.cancel))
        finally:
            self._turns.release(flight)

    async def _ready(self, flight: Flight) -> tuple[RankGroup, Prepared] | None:
        """A worker, and what it made of the request; None = cancelled meanwhile.

        A worker that was lost before it had the request is replaced: that is no error of this request.
        """

        def on_loading(rank: int, done: int, total: int) -> None:
            flight.put(Status(id=flight.id, phase="loading", done=done, total=total, rank=rank))

        request = flight.request
        again = True
        while not flight.cancel.cancelled:
            group = await unless_cancelled(self._ensure(on_loading), flight.cancel)
            if group is None:
                return None
            flight.phase = "queued"
            self._check(request)
            ready = self._prepared.pop(flight.id, None)
            try:
                if ready is None or ready[0] is not group:
                    prepared = await unless_cancelled(group.prepare(request), flight.cancel)
                    if prepared is None:
                        return None
                    ready = (group, prepared)
            except ExoError:
                if group.error is None or not again:
                    raise
                again = False
                continue
            flight.total = ready[1].prompt_tokens
            flight.reserves = ready[1].prompt_tokens + ready[1].max_tokens
            return ready
        return None

    async def _follow(self, flight: Flight, live: Live) -> Finished:
        flight.submitted = time.monotonic()
        flight.phase = "prefill"
        while True:
            event = await live.events.get()
            if isinstance(event, Finished):
                return event
            flight.put(event)

    def _limit(self) -> int:
        limit = self.capabilities.max_concurrency
        return max(1, min(limit, self._concurrency) if self._concurrency else limit)

    def _fits(self, needs: Sequence[int]) -> bool:
        """Does memory hold requests of so many tokens each, side by side?"""
        bound = self.capabilities.kv_tokens
        return bound is None or self._room_of(needs) <= bound

    def _room_of(self, needs: Sequence[int]) -> int:
        return len(needs) * max(needs, default=0) if self.capabilities.kv_padded else sum(needs)

    # ----------------------------------------------------------------------------------- ending

    async def kill(self) -> None:
        """End the workers at once. What was cancelled finishes as cancelled (killed), the rest with an
        error; the next request starts a fresh worker."""
        await self._loader.kill()

    async def close(self) -> None:
        """Cancel what runs, wait for it, end the workers. Nothing starts afterwards."""
        self._closed = True
        for flight in list(self.flights.values()):
            flight.cancel.cancel("closing")
        if self.flights:
            waits = [asyncio.ensure_future(f.done.wait()) for f in self.flights.values()]
            _, late = await asyncio.wait(waits, timeout=self.cancel_deadline)
            for wait in late:
                wait.cancel()
        await self._loader.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _spawn(self, coroutine: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
