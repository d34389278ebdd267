"""Opening a session's engine: one load however many wait, ended when the last of them leaves.

Knows no request; session.py asks for the ranks and drives them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exocli import config
from exocli.backend import BackendSpec, ModelRef, WorkerSpec, load_object
from exocli.errors import EngineFailed, WorkerDied
from exocli.options import build
from exocli.runtime.group import OnLoading, RankGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What to open. `python` names the workers' interpreter (default: this one)."""

    spec: BackendSpec
    path: str
    ref: ModelRef | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    python: str | None = None
    debug: bool = False

    def group(self, specs: Sequence[WorkerSpec]) -> RankGroup:
        """Its ranks, not yet started. In an asyncio loop."""
        order = {
            "backend": self.spec.name,
            "open": self.spec.open,
            "open_options": self.spec.open_options,
            "model": self.path,
            "options": dict(self.options),
            "defaults": dict(self.defaults),
            "cache_dir": str(config.cache_dir(self.spec.name)),
        }
        return RankGroup(
            backend=self.spec.name,
            order=order,
            specs=specs,
            inline=self.spec.place == "inline",
            log_dir=config.data_dir("logs"),
            debug=self.debug,
            target_s=float(self.options.get("cancel_latency_ms", 300)) / 1000,
            stall_timeout=self.options.get("stall_timeout"),
        )

    async def launch(self) -> Sequence[WorkerSpec]:
        """How to start each rank, by the backend's `launch`. Raises what that raises; EngineFailed for a
        sys.exit() of its, which would end whoever awaits it."""
        if self.spec.launch is None:
            return [WorkerSpec(python=self.python)]
        ref = self.ref or ModelRef(kind="path", name=self.path)
        options: Any = self.options
        if self.spec.open_options is not None:
            cls = load_object(self.spec.open_options)
            options = build(cls, [self.options], f"the backend {self.spec.name}")
        try:
            launch = load_object(self.spec.launch)
            specs: Sequence[WorkerSpec] = await asyncio.to_thread(launch, ref, options)
        except SystemExit as error:
            raise EngineFailed(f"The launch of {self.spec.name} failed: SystemExit: {error}.") from error
        return specs


class Loader:
    """Every method belongs to one asyncio loop."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.group: RankGroup | None = None
        """The last one that was opened; it may have ended since."""
        self.restarts = 0
        self.loaded_at = 0.0
        """time.monotonic() when it was last ready."""
        self._task: asyncio.Task[RankGroup] | None = None
        self._waiters: dict[object, OnLoading | None] = {}

    @property
    def ready(self) -> RankGroup | None:
        """The group, while it is there."""
        return self.group if self.group is not None and self.group.error is None else None

    @property
    def loading(self) -> bool:
        return self._task is not None

    async def ensure(self, on_loading: OnLoading | None = None) -> RankGroup:
        """The ready group; opened anew if the last one has ended. Raises what prevents it."""
        if self.ready is not None and self._task is None:
            return self.ready
        if self._task is None:
            self._task = asyncio.create_task(self._load())
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        task = self._task
        waiter = object()
        self._waiters[waiter] = on_loading
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if task.cancelled() and me is not None and not me.cancelling():
                text = f"The worker of {self.opening.spec.name} was ended while it was loading."
                raise WorkerDied(text) from None
            raise
        finally:
            del self._waiters[waiter]
            if not task.done() and not self._waiters:
                await self._stop()

    async def _load(self) -> RankGroup:
        group: RankGroup | None = None
        try:
            if self.group is not None:
                self.restarts += 1
                await self.group.close()
                self.group = None
            group = self.opening.group(await self.opening.launch())
            await group.start(self._on_loading)
        except BaseException:
            if group is not None:
                await group.close(grace=0)
            raise
        finally:
            if self._task is asyncio.current_task():
                self._task = None
        self.group = group
        self.loaded_at = time.monotonic()
        return group

    def _on_loading(self, rank: int, done: int, total: int) -> None:
        for listener in tuple(self._waiters.values()):
            if listener is not None:
                listener(rank, done, total)

    async def _stop(self) -> None:
        """A load is cancelled by ending the worker. Who asks from now on starts another one."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def kill(self) -> None:
        """End the workers at once, loading ones too; `ensure` starts fresh ones."""
        await self._stop()
        if self.group is not None:
            await self.group.kill()

    async def close(self) -> None:
        """End the workers, in good order where they answer."""
        await self._stop()
        if self.group is not None:
            await self.group.close()
            self.group = None
