"""The engine loop: the same in every rank, whatever carries its lines.

`receive` is called from a reader thread with the parent's lines; `run` drives the engine in the thread
that opened it. Knows nothing of processes or pipes (worker.py does) and nothing of any backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from exocli.cancel import CancelToken
from exocli.engine import StepEngine, StreamEngine
from exocli.errors import BadRequest, Cancelled, EngineFailed, ExoError
from exocli.runtime.wire import Line
from exocli.types import (
    EVENT_TYPES,
    Event,
    Finished,
    Prepared,
    Receipt,
    Request,
    prepared_from_json,
    request_from_json,
    to_json,
)

Emit = Callable[[Line], None]

PREPARE_ALONE = 5.0
"""Seconds in which one `prepare` keeps the others waiting; one that takes longer goes on beside them."""


class Loop(Protocol):
    @property
    def live(self) -> int:
        """Requests being prepared, or submitted and not finished."""

    @property
    def steps(self) -> int: ...
    def receive(self, line: dict[str, Any]) -> None: ...
    def run(self) -> None: ...


def describe_error(error: BaseException) -> dict[str, Any]:
    """The wire form of whatever an engine raised."""
    if isinstance(error, ExoError):
        return error.to_dict()
    text = " ".join(str(error).split()) or "no message"
    trace = "".join(traceback.format_exception(error))
    return EngineFailed(f"The engine failed: {type(error).__name__}: {text}", trace=trace).to_dict()


def _checked(event: Any) -> Event:
    """What an engine gives must be an event: anything else would only fail far away, in the parent."""
    if type(event) not in EVENT_TYPES.values():
        raise EngineFailed(f"The engine gave a {type(event).__name__} where an event belongs.")
    known: Event = event
    return known


def _tell(token: CancelToken) -> None:
    """Cancel; an error in one of the engine's own listeners must not end the thread that tells it."""
    try:
        token.cancel()
    except Exception:
        traceback.print_exc()


class StepLoop:
    """Drives a StepEngine: agree on how far to read the log, apply it, step, report."""

    def __init__(self, engine: StepEngine, emit: Emit, rank: int, size: int) -> None:
        self._engine = engine
        self._emit = emit
        self._rank = rank
        self._size = size
        self._wake = threading.Condition()
        self._log: deque[dict[str, Any]] = deque()
        self._received = 0
        self._applied = 0
        self._preparing = 0
        self._credit = 0
        self._closing = False
        self._tokens: dict[str, CancelToken] = {}
        self._live: set[str] = set()
        self._pending: list[Event] = []
        self._requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.steps = 0

    @property
    def live(self) -> int:
        # Counts from the moment a line is read, so that no beat is missed.
        return len(self._tokens) + self._preparing

    # ------------------------------------------------------------------------- the reader's thread

    def receive(self, line: dict[str, Any]) -> None:
        if line["do"] == "prepare":
            with self._wake:
                self._preparing += 1
            self._requests.put(line)
            return
        with self._wake:
            if line["do"] == "credit":
                self._credit = max(self._credit, line["step"])
            else:
                if line["do"] == "submit":
                    self._tokens[line["prepared"]["id"]] = CancelToken()
                elif line["do"] == "cancel" and self._size == 1:
                    # Alone there is nobody to agree with: an engine may stop inside its step.
                    self._cancel(line["id"])
                self._log.append(line)
                self._received = line["n"]
            self._wake.notify()

    def _cancel(self, request_id: str) -> None:
        token = self._tokens.get(request_id)
        if token is not None:
            _tell(token)

    def _prepare_all(self) -> None:
        while (line := self._requests.get()) is not None:
            one = threading.Thread(target=self._prepare, args=(line,), name="exo-prepare-one", daemon=True)
            one.start()
            one.join(PREPARE_ALONE)

    def _prepare(self, line: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"t": "prepared", "ticket": line["ticket"]}
        try:
            prepared = self._engine.prepare(request_from_json(line["request"]))
            if not isinstance(prepared, Prepared):
                raise EngineFailed(f"prepare() gave a {type(prepared).__name__}, not a Prepared.")
            self._emit({**answer, "prepared": to_json(prepared)})
        except BaseException as error:  # whatever it is (a sys.exit too), it is this request's alone
            self._emit({**answer, "error": describe_error(error)})
        with self._wake:
            self._preparing -= 1

    # ------------------------------------------------------------------------- the engine's thread

    def run(self) -> None:
        """Until a `close` command. An exception of a step comes out of here, after it was emitted."""
        threading.Thread(target=self._prepare_all, name="exo-prepare", daemon=True).start()
        try:
            while not self._closing:
                upto = self._engine.agree(self._wait())
                for command in self._take(upto):
                    self._apply(command)
                if self._live or self._pending:
                    self._step()
        except BaseException as error:
            self._emit({"t": "broken", "error": describe_error(error)})
            raise
        finally:
            self._requests.put(None)
        self._engine.close()

    def _wait(self) -> int:
        """Sleep while there is nothing to do, or while this rank would lead too far; → received."""
        lead = self._engine.max_lead if self._rank == 0 else None  # the others follow its header
        with self._wake:
            while not self._live and self._applied == self._received:
                self._wake.wait()
            while lead is not None and self._live and self.steps - self._credit >= lead:
                self._wake.wait()
            return self._received

    def _take(self, upto: int) -> list[dict[str, Any]]:
        with self._wake:
            while self._received < upto:  # it is on its way: the parent wrote it to every rank
                self._wake.wait()
            taken = []
            while self._log and self._log[0]["n"] <= upto:
                taken.append(self._log.popleft())
            self._applied = max(self._applied, upto)
        return taken

    def _apply(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "submit":
                prepared = prepared_from_json(command["prepared"])
                self._live.add(prepared.id)
                try:
                    self._engine.submit(prepared, self._tokens[prepared.id])
                except Exception as error:
                    if self._size > 1 and not isinstance(error, BadRequest):
                        raise  # another rank may have taken it: out of step is worse than a restart
                    failed = Finished(id=prepared.id, reason="error", error=describe_error(error))
                    self._pending.append(failed)
            case "cancel":
                self._cancel(command["id"])
            case "tune":
                self._engine.tune(command["chunk"])
            case "apply":
                self._engine.apply(command["command"])
            case "close":
                self._closing = True

    def _step(self) -> None:
        start = time.perf_counter()
        events, self._pending = self._pending, []
        events.extend(_checked(event) for event in self._engine.step())
        self.steps += 1
        left = [event.id for event in events if isinstance(event, Finished)]
        for request_id in left:
            self._live.discard(request_id)
            self._tokens.pop(request_id, None)
        self._emit(
            {
                "t": "step",
                "n": self.steps,
                "s": time.perf_counter() - start,
                "info": self._engine.last_step(),
                "events": [to_json(e) for e in events] if self._rank == 0 else [],
                "left": left,
            }
        )


class StreamLoop:
    """Runs a StreamEngine's requests side by side on one asyncio loop, behind the same lines."""

    def __init__(self, engine: StreamEngine, emit: Emit) -> None:
        self._engine = engine
        self._emit = emit
        self._loop = asyncio.new_event_loop()
        self._lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._tokens: dict[str, CancelToken] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.steps = 0

    @property
    def live(self) -> int:
        return len(self._tokens)

    def receive(self, line: dict[str, Any]) -> None:
        if line["do"] == "submit":
            self._tokens[line["prepared"]["id"]] = CancelToken()
        with contextlib.suppress(RuntimeError):  # closed already: a line that came after `close`
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        while (line := await self._lines.get())["do"] != "close":
            match line["do"]:
                case "prepare":
                    self._keep(asyncio.create_task(self._count(line["request"], line["ticket"])))
                case "submit":
                    request = request_from_json(line["prepared"]["settings"]["request"])
                    self._keep(asyncio.create_task(self._serve(request, self._tokens[request.id])))
                case "cancel" if line["id"] in self._tokens:
                    _tell(self._tokens[line["id"]])
        for token in tuple(self._tokens.values()):  # the reader may still add to them
            _tell(token)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)
        await self._engine.aclose()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _count(self, data: dict[str, Any], ticket: int) -> None:
        answer: dict[str, Any] = {"t": "prepared", "ticket": ticket}
        try:
            request = request_from_json(data)
            count = await self._engine.count_tokens(request)
            prepared = Prepared(
                id=request.id,
                prompt_tokens=count or 0,
                max_tokens=request.max_tokens or 0,
                settings={"request": data, "counted": count is not None},
            )
            self._emit({**answer, "prepared": to_json(prepared)})
        except BaseException as error:
            self._emit({**answer, "error": describe_error(error)})

    async def _serve(self, request: Request, token: CancelToken) -> None:
        said = over = False
        try:
            events = self._engine.stream(request, token)
            try:
                async for event in events:
                    said = said or getattr(event, "type", "") in ("text", "reasoning", "tool_call")
                    if _checked(event).id != request.id:  # nobody would ever hear of it
                        raise EngineFailed(f'The engine gave an event of another request, "{event.id}".')
                    over = isinstance(event, Finished)
                    if over:  # forgotten before it is told: the parent may use the id again at once
                        self._tokens.pop(request.id, None)
                    self._report(event)
                    if over:
                        return
            finally:
                close = getattr(events, "aclose", None)  # an async iterator need not be a generator
                if close is not None:
                    await close()
            raise EngineFailed("The backend's stream ended without saying why.")
        except BaseException as error:
            if over:
                traceback.print_exc()  # nobody waits for it any more
                return
            self._tokens.pop(request.id, None)
            if isinstance(error, Cancelled) and token.cancelled:
                receipt = Receipt(phase="decode" if said else "prefill")
                self._report(Finished(id=request.id, reason="cancelled", cancel=receipt))
            else:
                self._report(Finished(id=request.id, reason="error", error=describe_error(error)))

    def _report(self, event: Event) -> None:
        self.steps += 1
        left = [event.id] if isinstance(event, Finished) else []
        self._emit({"t": "step", "n": self.steps, "events": [to_json(event)], "left": left})
