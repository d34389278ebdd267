"""The ranks of one opened model, as one thing: the numbered log, the cancels, the end.

Every rank gets the same commands in the same order. A request is over when rank 0 has said how and
every rank has said that it left. A group that lost a rank is ended whole; session.py starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from exocli.backend import Capabilities, WorkerSpec
from exocli.cancel import CancelToken
from exocli.errors import EngineFailed, ExoError, Unavailable, WorkerDied, from_dict
from exocli.runtime import prepares, wire
from exocli.runtime.live import Live
from exocli.runtime.prepares import Prepares
from exocli.runtime.process import InlineRank, ProcessRank, Rank
from exocli.runtime.tuner import Pace
from exocli.runtime.verdict import Verdict
from exocli.runtime.watchdog import Watchdog
from exocli.types import (
    Event,
    Finished,
    Prepared,
    Progress,
    Reasoning,
    Request,
    Text,
    ToolCall,
    event_from_json,
    to_json,
)

OnLoading = Callable[[int, int, int], None]
"""(rank, done, total)"""

TICK = 0.25
GAP = 2.0
"""A tick that comes this many seconds late means that this process itself stood still."""
DEATH_GRACE = 0.3
"""When a peer is lost the survivors complain first; wait this long for the one that really ended."""


class RankGroup:
    """`start`, then `prepare` and `submit` at will, then `close`. All in one asyncio loop."""

    def __init__(
        self,
        *,
        backend: str,
        order: dict[str, Any],
        specs: Sequence[WorkerSpec],
        inline: bool,
        log_dir: Path,
        debug: bool = False,
        target_s: float = 0.3,
        stall_timeout: float | None = None,
    ) -> None:
        self.backend = backend
        self.size = len(specs)
        self.capabilities = Capabilities()
        self.describe: dict[str, Any] = {}
        self.live: dict[str, Live] = {}
        self.error: ExoError | None = None
        """Why the group ended, once it has."""
        self._order = order
        logs = {spec.rank: log_dir / f"{backend}-rank{spec.rank}.log" for spec in specs}
        self.ranks: list[Rank] = [
            InlineRank(spec, self._on_line, self._on_end, logs[spec.rank])
            if inline
            else ProcessRank(spec, self._on_line, self._on_end, logs[spec.rank], debug)
            for spec in specs
        ]
        self._ready: dict[int, dict[str, Any]] = {}
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opened.add_done_callback(lambda f: f.cancelled() or f.exception())  # always looked at
        self._on_loading: OnLoading = lambda rank, done, total: None
        self._prepares = Prepares(self.ranks[0].send)
        self._number = 0
        self._pace = Pace(target_s, self.size)
        self._verdict = Verdict(backend, self._name, lambda rank: self.ranks[rank].tail())
        self._watchdog = Watchdog(
            backend,
            self.size,
            self.live,
            name=self._name,
            usual=lambda: self._pace.usual,
            prepares=self._prepares,
            stall_timeout=stall_timeout,
        )
        self._closing = False
        self._busy = asyncio.Event()
        self._all_gone = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # ----------------------------------------------------------------------------------- opening

    async def start(self, on_loading: OnLoading) -> None:
        """Start every rank and wait until each is ready. Raises the ExoError that prevented it."""
        self._on_loading = on_loading
        try:
            for rank in self.ranks:
                own = {"rank": rank.spec.rank, "size": self.size, "data": dict(rank.spec.data)}
                await rank.start({**self._order, **own})
                if self.error is not None:  # one of those before has failed already
                    raise self.error
        except OSError as error:
            text = f"The worker of {self.backend} cannot be started: {error.strerror or error}."
            self._fail(Unavailable(text))
        await self._opened
        self._spawn(self._watch())

    def _all_ready(self) -> None:
        first = self._ready[0]
        caps = dict(first["capabilities"])
        for name in ("tasks", "inputs"):
            caps[name] = tuple(caps[name])
        self.capabilities = Capabilities(**caps)
        self.describe = first["describe"]
        slowest = max(r["warm_up_s"] or 0.0 for r in self._ready.values())
        if slowest:
            lead = max(r["max_lead"] or 0 for r in self._ready.values())
            self._append(do="tune", chunk=self._pace.start(slowest, lead))
        if not self._opened.done():
            self._opened.set_result(None)

    def rank_rows(self) -> list[dict[str, Any]]:
        """{rank, host, silent_s, facts} of each; `silent_s` is 0 for one that owes no sign of life."""
        return [
            {
                "rank": number,
                "host": rank.spec.host,
                "silent_s": self._watchdog.silent_s(number),
                "facts": self._ready[number]["describe"],
            }
            for number, rank in enumerate(self.ranks)
        ]

    # ----------------------------------------------------------------------------------- requests

    async def prepare(self, request: Request) -> Prepared:
        """Rank 0 validates, tokenizes and counts. Raises BadRequest, EngineFailed where that takes longer
        than PREPARE_LIMIT, or why the group ended."""
        self._raise_if_ended()
        self._watchdog.begin()
        self._busy.set()
        try:
            return await self._prepares.ask(request)
        except TimeoutError as error:
            limit = f"{prepares.PREPARE_LIMIT:g} s"
            text = f"{self._name(0)} of {self.backend} has not read the request within {limit}."
            raise EngineFailed(text) from error
        finally:
            self._rest()

    def submit(self, prepared: Prepared, cancel: CancelToken) -> Live:
        """Put it into the log. Its events, Finished last, come out of `Live.events`."""
        self._raise_if_ended()
        self._watchdog.begin()
        self._busy.set()
        live = Live(id=prepared.id, cancel=cancel, total=prepared.prompt_tokens)
        self.live[prepared.id] = live
        self._append(do="submit", prepared=to_json(prepared))
        loop = asyncio.get_running_loop()

        def ask() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it everything
                loop.call_soon_threadsafe(self._send_cancel, live)

        cancel.on_cancel(ask)
        return live

    def _send_cancel(self, live: Live) -> None:
        if self.live.get(live.id) is live and live.cancel_sent is None and self.error is None:
            live.cancel_sent = time.monotonic()
            self._append(do="cancel", id=live.id)

    def _append(self, **command: Any) -> None:
        self._number += 1
        for rank in self.ranks:  # rank 0 first: it leads
            rank.send({"n": self._number, **command})

    # -------------------------------------------------------------------------- lines from the ranks

    def _on_line(self, rank: int, line: dict[str, Any]) -> None:
        if self.error is not None:
            return  # nothing old answers
        self._watchdog.heard(rank, step=line.get("t") == "step")
        try:
            self._take(rank, line)
        except Exception as error:  # it must not end the reader: then nobody would learn of anything
            text = f"{self._name(rank)} of {self.backend} sent a line that makes no sense: {error!r}."
            self._fail(EngineFailed(text, rank=rank))

    def _take(self, rank: int, line: dict[str, Any]) -> None:
        match line.get("t"):
            case "hello" if line["wire"] != wire.VERSION:
                text = (
                    f"{self._name(rank)} speaks wire version {line['wire']}, exo here {wire.VERSION}: "
                    "install one version of exocli everywhere."
                )
                self._fail(Unavailable(text, rank=rank))
            case "hello":
                self._verdict.started(rank)
            case "step":
                self._on_step(rank, line)
            case "prepared":
                self._prepares.on_line(line)
            case "loading":
                self._on_loading(rank, line["done"], line["total"])
            case "ready":
                self._ready[rank] = line
                if len(self._ready) == self.size:
                    self._all_ready()
            case "ask" if rank == 0:
                self._append(do="apply", command=line["command"])
            case "failed" | "broken":
                self._complain(rank, from_dict(line["error"]))

    def _on_step(self, rank: int, line: dict[str, Any]) -> None:
        if rank == self.size - 1 and self.size > 1:
            self.ranks[0].send({"do": "credit", "step": line["n"]})
        for data in line["events"]:
            event = event_from_json(data)
            live = self.live.get(data["id"]) if event is not None else None
            if event is not None and live is not None and live.finished is None:
                self._on_event(live, event)
        for request_id in line["left"]:
            live = self.live.get(request_id)
            if live is not None:
                live.left.add(rank)
                self._maybe_finish(live)
        if "s" in line:
            tokens = (line.get("info") or {}).get("prefill_tokens", 0)
            chunk = self._pace.observe(line["n"], line["s"], tokens)
            if chunk is not None:
                self._append(do="tune", chunk=chunk)

    def _on_event(self, live: Live, event: Event) -> None:
        match event:
            case Finished():
                live.finished = event
                return
            case Progress(processed=processed, total=total, cached=cached):
                live.processed, live.total, live.cached = processed, total, cached
            case Text() | Reasoning() | ToolCall():
                live.phase = "decode"
                live.tokens += 1
        live.events.put_nowait(event)

    def _maybe_finish(self, live: Live) -> None:
        if live.finished is None or len(live.left) < self.size:
            return
        finished = live.finished
        if finished.cancel is not None:
            receipt = replace(finished.cancel, latency_ms=live.latency_ms)
            if self.size > 1:  # one that is alone may speak for a server's ranks
                receipt = replace(receipt, ranks=self.size)
            finished = replace(finished, cancel=receipt)
        self._finish(live, finished)

    def _finish(self, live: Live, finished: Finished) -> None:
        if self.live.pop(live.id, None) is not None:
            live.events.put_nowait(finished)
        self._rest()

    def _rest(self) -> None:
        """Nobody owes a sign of life any more, if that is so."""
        if not self.live and not self._prepares:
            self._busy.clear()

    # --------------------------------------------------------------------------------- the watchdog

    @property
    def chunk(self) -> int:
        return self._pace.tuner.chunk

    @property
    def cancel_deadline(self) -> float:
        """Seconds after which an unanswered cancel is told; at twice that the workers are ended."""
        return self._watchdog.cancel_deadline

    def waiting_for(self, request_id: str) -> str | None:
        """Who has not left a cancelled request yet, for a person; None if it is over."""
        live = self.live.get(request_id)
        return self._watchdog.missing(live) if live is not None else None

    async def _watch(self) -> None:
        while self.error is None:
            await self._busy.wait()
            before = time.monotonic()
            await asyncio.sleep(TICK)
            now = time.monotonic()
            if now - before > GAP + TICK:
                self._watchdog.restart(now)
            elif stalled := self._watchdog.stalled(now):
                self._fail(stalled)

    def _name(self, rank: int) -> str:
        if self.size == 1:
            return "The worker"
        return f"Rank {rank} on {self.ranks[rank].spec.host}"

    # ---------------------------------------------------------------------------------- the end

    def _complain(self, rank: int, error: ExoError) -> None:
        self._verdict.complained(rank, error)
        self._settle()

    def _on_end(self, rank: int, reason: str) -> None:
        self._verdict.ended(rank, reason)
        if self._verdict.gone == self.size:
            self._all_gone.set()
        if self.error is None and not self._closing:
            self._settle()

    def _settle(self) -> None:
        """The survivors complain first: wait a moment for the one that really ended."""
        if self.size == 1:
            self._judge()
        elif self.error is None:
            asyncio.get_running_loop().call_later(DEATH_GRACE, self._judge)

    def _judge(self) -> None:
        culprit = self._verdict.culprit()
        if culprit is not None:
            self._fail(culprit)

    def _fail(self, error: ExoError) -> None:
        """End the group: everything that waits learns why, every rank is ended."""
        if self.error is not None:
            return
        self.error = error
        if not self._opened.done():
            self._opened.set_exception(error)
        self._prepares.fail(error)
        for live in list(self.live.values()):
            self._finish(live, live.lost(error, self.size))
        self._spawn(self._kill())

    async def _kill(self) -> None:
        await asyncio.gather(*(rank.kill() for rank in self.ranks), return_exceptions=True)
        self._ended.set()

    async def kill(self, error: ExoError | None = None) -> None:
        """End every rank at once; what was cancelled finishes as cancelled and killed."""
        self._fail(error or WorkerDied(f"The worker of {self.backend} was ended on request."))
        await self._ended.wait()

    async def close(self, grace: float = 1.0) -> None:
        """Let the ranks end by themselves for `grace` seconds, then end them."""
        if self.error is None and grace:
            self._closing = True
            self._append(do="close")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), grace)
        await self.kill(WorkerDied(f"The worker of {self.backend} was closed."))
        await self._kill()  # again: one may have been on its way up when the others were ended
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _raise_if_ended(self) -> None:
        if self.error is not None:
            raise self.error

    def _spawn(self, coroutine: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
