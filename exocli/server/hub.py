"""The models this server knows by name, one Session each: opened on first use, unloaded when idle.

Knows names, choices and sessions; nothing of HTTP, of APIs, or of what a request holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from exocli.errors import BadRequest, ExoError, ModelNotFound, Overloaded, Unsupported, from_dict
from exocli.runtime.session import Session
from exocli.supported import TASK_WORDS
from exocli.types import Finished, Task

Opener = Callable[[int | None], Session]
"""(concurrency) → a fresh session, nothing loaded; blocking; raises the ExoError that prevents it."""

LATEST = ":latest"
TICK_S = 1.0
FOR_GOOD_S = 1e9
"""Whoever keeps a model for longer (some thirty years) keeps it for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model to serve. `name` is what clients write (it may hold `*`); those with one `key` share a
    session. `most` is how many requests its backend can run at once, `tasks` what it is for, both as far
    as known before it is open (() = not at all); `system` stands in where a request has no system message."""

    name: str
    key: str
    open: Opener
    backend: str
    most: int = 1
    tasks: tuple[Task, ...] = ()
    size: int = 0
    system: str | None = None
    details: Mapping[str, Any] | None = None


class Model:
    """One session and who uses it."""

    def __init__(self, served: Served, concurrency: int | None, max_queue: int, keep_s: float) -> None:
        self.name = served.name
        self.served = served
        self.opened: Session | None = None
        self.keep_s = keep_s
        """Seconds of idleness after which it is unloaded; 0 = never."""
        self.unload_when_idle = False
        self.problem: ExoError | None = None
        """Why it could not be opened or ended badly, until it works again."""
        self._restarts = 0
        self.idle_since = time.monotonic()
        self.created = int(time.time())
        self._concurrency = concurrency
        self._max_queue = max_queue
        self._users: set[str] = set()
        self._closing: asyncio.Task[None] | None = None
        self._opening: asyncio.Lock = asyncio.Lock()

    async def session(self) -> Session:
        """Waits for an unload under way, so that two copies are never in memory."""
        if self._closing is not None:
            await asyncio.shield(self._closing)
        async with self._opening:
            if self.opened is None:
                self.opened = await asyncio.to_thread(self.served.open, self._concurrency)
        return self.opened

    @property
    def state(self) -> str:
        """ "loaded", "loading", "failed" or "idle" (not loaded)."""
        if self.opened is not None and self.opened.loading:
            return "loading"
        if self.opened is not None and self.opened.loaded:
            return "loaded"
        return "failed" if self.problem is not None else "idle"

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What it is for; () while nobody knows."""
        opened = self.opened if self.opened is not None and self.opened.loaded else None
        return opened.capabilities.tasks if opened is not None else self.served.tasks

    def may(self, task: Task) -> bool:
        """Could it do this? Before it is open a text model's tasks are known by and large only."""
        known = self.tasks
        return not known or task in known or (self.state != "loaded" and "embed" not in (task, *known))

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.opened.facts if self.opened is not None else {}

    @property
    def restarts(self) -> int:
        """Workers started anew after one was lost."""
        return self._restarts + (self.opened.restarts if self.opened is not None else 0)

    # ------------------------------------------------------------------------------- its users

    @property
    def in_use(self) -> int:
        return len(self._users)

    def limit(self) -> int:
        """How many requests run at once."""
        most = self.opened.capabilities.max_concurrency if self.opened is not None else self.served.most
        return max(1, min(most, self._concurrency) if self._concurrency else most)

    def admit(self) -> None:
        """Raises Overloaded when the queue is full. Counts from arrival, so that a burst cannot slip by."""
        limit = self.limit()
        busy = len(self._users)
        if busy >= limit + self._max_queue:
            waiting = max(0, busy - limit)
            text = f"The queue of {self.name} is full: {limit} running, {waiting} waiting. Try again soon."
            raise Overloaded(text, retry_after=1)

    def entered(self, request_id: str) -> None:
        self._users.add(request_id)

    def left(self, request_id: str, finished: Finished | None = None) -> None:
        """A request is over. What it ended with says whether the engine works."""
        self._users.discard(request_id)
        if finished is not None and finished.error is not None:
            error = from_dict(finished.error)
            if not isinstance(error, (BadRequest, Overloaded, ModelNotFound)):
                self.problem = error
        elif finished is not None and (finished.cancel is None or finished.cancel.ranks):
            self.problem = None
        if not self._users:
            self.idle_since = time.monotonic()
            if self.unload_when_idle:
                self.unload()

    # ------------------------------------------------------------------------------- unloading

    @property
    def idle_left(self) -> float | None:
        """Seconds until it is unloaded; None = it stays."""
        if self.keep_s <= 0 or self._users or self.state != "loaded":
            return None
        return max(0.0, self.idle_since + self.keep_s - time.monotonic())

    def keep(self, seconds: float) -> None:
        """Ollama's keep_alive: below 0 it stays for good, 0 unloads as soon as nobody uses it."""
        if seconds == 0:
            self.unload()
        else:
            self.keep_s = seconds if 0 < seconds < FOR_GOOD_S else 0.0
            self.unload_when_idle = False

    def unload(self) -> bool:
        """Give the memory back: now if nobody uses it, else when the last one is done. → whether now."""
        if self._users:
            self.unload_when_idle = True
            return False
        self.unload_when_idle = False
        session, self.opened = self.opened, None
        if session is not None:
            self._restarts += session.restarts
            self._closing = asyncio.get_running_loop().create_task(self._close(session))
        return True

    async def _close(self, session: Session) -> None:
        try:
            await session.close()
        finally:
            self._closing = None

    async def close(self) -> None:
        if self._closing is not None:
            await self._closing
        if self.opened is not None:
            await self.opened.close()


class Hub:
    """The names in order; the first is meant when a request names none."""

    def __init__(
        self,
        served: Iterable[Served],
        *,
        concurrency: int | None = None,
        max_queue: int = 0,
        idle_unload: float = 0.0,
    ) -> None:
        self.models: dict[str, Model] = {}
        by_key: dict[str, Model] = {}
        self.served: dict[str, Served] = {}
        for one in served:
            model = by_key.setdefault(one.key, Model(one, concurrency, max_queue, idle_unload))
            self.models.setdefault(one.name, model)
            self.served.setdefault(one.name, one)

    def able(self, task: Task) -> list[str]:
        """The names of the models that could do this."""
        return [name for name, model in self.models.items() if model.may(task)]

    def find_for(self, name: str | None, task: Task) -> tuple[Model, Served]:
        """As `find`; without a name the first model that could do it. Raises Unsupported, naming those,
        if this one cannot."""
        able = self.able(task)
        model, served = self.find(name or (able[0] if able else None))
        if not model.may(task):
            others = f"of this server's models, {', '.join(able)} can" if able else "no model here can"
            text = f"{served.name} cannot {TASK_WORDS.get(task, task)}: {others}."
            raise Unsupported(text, field="model", tasks=list(model.tasks))
        return model, served

    def find(self, name: str | None) -> tuple[Model, Served]:
        """Raises ModelNotFound that lists the names. Never a path, never a name that is not listed."""
        if not self.models:
            raise ModelNotFound("This server has no model.")
        wanted = name or next(iter(self.models))
        for candidate in (wanted, wanted.removesuffix(LATEST)):
            if candidate in self.models:
                return self.models[candidate], self.served[candidate]
            for pattern, model in self.models.items():
                if "*" in pattern and fnmatchcase(candidate, pattern):
                    return model, self.served[pattern]
        known = ", ".join(self.models)
        raise ModelNotFound(
            f'There is no model "{wanted[:200]}" here; this server has: {known}.', field="model"
        )

    @property
    def unique(self) -> list[Model]:
        return list({id(model): model for model in self.models.values()}.values())

    async def watch(self) -> None:
        """Unload what has been idle for its time. Runs until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            for model in self.unique:
                if model.idle_left == 0.0:
                    model.unload()

    async def close(self) -> None:
        await asyncio.gather(*(model.close() for model in self.unique), return_exceptions=True)

    async def kill(self) -> None:
        """End every worker at once."""
        with suppress(ExoError):
            await asyncio.gather(*(m.opened.kill() for m in self.unique if m.opened is not None))
