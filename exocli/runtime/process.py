"""The parent's end of one rank: starts it, writes its lines, reads its lines, ends it.

ProcessRank is a worker process, InlineRank a thread that runs the same code; the rest of the runtime
cannot tell them apart. Decides nothing (group.py does).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TextIO

from exocli.backend import WorkerSpec
from exocli.runtime import wire

TAIL = 20
"""Lines of a worker's stderr that an error message may quote."""
TAIL_GRACE = 1.0
"""Seconds to wait for the end of a dead worker's stderr, which a daemon that it started may hold."""
REAP_GRACE = 10.0
"""Seconds to wait for each of a killed worker's two ends: of its output, and until the system has taken it
away, which frees a model's memory first."""
LOG_LIMIT = 1 << 20
"""Bytes after which a worker's log file starts anew when the next worker starts."""


class Rank(Protocol):
    """`on_line` and `on_end(reason)` are called in the loop that called start; on_end exactly once."""

    spec: WorkerSpec

    async def start(self, order: dict[str, Any]) -> None: ...
    def send(self, line: wire.Line) -> None: ...
    async def kill(self) -> None: ...
    def tail(self) -> list[str]: ...


OnLine = Callable[[int, dict[str, Any]], None]
OnEnd = Callable[[int, str], None]


class ProcessRank:
    def __init__(self, spec: WorkerSpec, on_line: OnLine, on_end: OnEnd, log: Path, debug: bool) -> None:
        self.spec = spec
        self._on_line = on_line
        self._on_end = on_end
        self._log = log
        self._debug = debug
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def command(self) -> list[str]:
        # -P: a file of the user's folder must not shadow a module of ours.
        python = self.spec.python or sys.executable
        return [*self.spec.prefix, python, "-P", "-m", "exocli.runtime.worker"]

    async def start(self, order: dict[str, Any]) -> None:
        """Raises OSError if the command cannot be started."""
        with _interrupts_held():
            self._process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=wire.LINE_LIMIT,
                start_new_session=True,  # the terminal's Ctrl-C reaches the parent alone
            )
        self.send({"wire": wire.VERSION, "open": {**order, "env": dict(self.spec.env)}})
        errors = asyncio.create_task(self._read_errors())
        self._tasks = [errors, asyncio.create_task(self._read(errors))]

    def send(self, line: wire.Line) -> None:
        stdin = self._process.stdin if self._process is not None else None
        if stdin is not None and not stdin.is_closing():
            stdin.write(wire.encode(line))

    def tail(self) -> list[str]:
        return list(self._tail)

    async def kill(self) -> None:
        """End it at once and wait until it is gone. A second call waits as well."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            self._end_group()
        if process.stdin is not None and not process.stdin.is_closing():
            process.stdin.transport.abort()  # one that no signal reaches (sudo, setsid) sees its parent leave
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=REAP_GRACE)
            for task in late:
                task.cancel()
        deadline = time.monotonic() + REAP_GRACE
        while process.returncode is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)  # process.wait() would wait for its pipes too, which others may hold

    async def _read(self, errors: asyncio.Task[None]) -> None:
        assert self._process is not None and self._process.stdout is not None
        rank = self.spec.rank
        reason = ""
        try:
            while raw := await self._process.stdout.readline():
                self._on_line(rank, wire.decode(raw))
        except (ValueError, RecursionError) as error:
            reason = f"sent a line that is not of the protocol ({error})"
        self._end_group()  # a child of the worker's would keep its memory, and hold stderr open
        # asyncio says that a process has ended only when its pipes are closed too.
        ended = asyncio.create_task(self._process.wait())
        await asyncio.wait([ended, errors], timeout=TAIL_GRACE)
        for late in (ended, errors):
            late.cancel()
        status = self._process.returncode
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._on_end(rank, reason or _ended(status))

    def _end_group(self) -> None:
        """The worker leads a process group of its own: whatever it started goes with it."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _read_errors(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        log = _open_log(self._log)
        try:
            while raw := await self._process.stderr.readline():
                text = raw.decode("utf-8", "replace")
                self._tail.append(text.rstrip())
                if log is not None:
                    with contextlib.suppress(OSError):
                        log.write(text)
                        log.flush()
                if self._debug:
                    with contextlib.suppress(OSError):  # a pipe that is not emptied would stop the worker
                        sys.stderr.write(f"[rank {self.spec.rank}] {text}")
        finally:
            if log is not None:
                with contextlib.suppress(OSError):
                    log.close()


def _open_log(path: Path) -> TextIO | None:
    """A log that cannot be written (read-only home, full disk) must not stop the work."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.exists() and path.stat().st_size > LOG_LIMIT
        return path.open("w" if fresh else "a", encoding="utf-8")
    except OSError:
        return None


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """A child is in the terminal's process group until it has begun its own session: a Ctrl-C in that
    moment must not end it. It inherits the block; worker.py takes it off."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _ended(status: int | None) -> str:
    if status is None:
        return "closed its output and does not end"
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if name == "SIGKILL":
        return "was killed (SIGKILL: by hand, or by the system when memory ran out)"
    return f"was ended by {name}"


class InlineRank:
    """The worker's code in a thread of this process. Cannot be killed, only left behind."""

    def __init__(self, spec: WorkerSpec, on_line: OnLine, on_end: OnEnd, log: Path) -> None:
        self.spec = spec
        self._log = log
        self._on_line = on_line
        self._on_end = on_end
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._ended = False

    async def start(self, order: dict[str, Any]) -> None:
        self._caller = asyncio.get_running_loop()
        self._lines.put({"wire": wire.VERSION, "open": order})
        threading.Thread(target=self._run, name=f"exo-inline-{order['backend']}", daemon=True).start()

    def send(self, line: wire.Line) -> None:
        self._lines.put(dict(line))

    def tail(self) -> list[str]:
        return []

    async def kill(self) -> None:
        self.send({"n": 1 << 62, "do": "close"})
        self._lines.put(None)
        self._end("was left behind")

    def _run(self) -> None:
        from exocli.runtime.worker import serve

        reason = "ended"
        try:
            serve(self._iterate(), self._emit, gone=lambda: None, log=self._write)
        except BaseException as error:  # the thread ends here in any case; who waits must learn of it
            reason = f"failed: {type(error).__name__}: {error}"
        self._call(self._end, reason)

    def _write(self, text: str) -> None:
        """Into the log, as a worker's: the terminal is the caller's."""
        log = _open_log(self._log)
        if log is not None:
            with contextlib.suppress(OSError), log:
                log.write(text + "\n")

    def _iterate(self) -> Iterator[dict[str, Any]]:
        while (line := self._lines.get()) is not None:
            yield line

    def _emit(self, line: wire.Line) -> None:
        self._call(self._deliver, dict(line))

    def _call(self, fn: Callable[[Any], None], argument: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody listens any more
            self._caller.call_soon_threadsafe(fn, argument)

    def _deliver(self, line: dict[str, Any]) -> None:
        if not self._ended:
            self._on_line(self.spec.rank, line)

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(self.spec.rank, reason)
