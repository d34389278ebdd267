"""One rank: takes its orders from lines, opens the engine, runs the loop.

As a process: `python -P -m exocli.runtime.worker`, lines on stdin and stdout. The same `serve` runs in
a thread for backends that live in the caller's process (process.py, InlineRank).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from exocli.backend import ProgressFn, load_object
from exocli.cancel import CancelToken
from exocli.engine import OpenContext, StepEngine, StreamEngine
from exocli.errors import EngineFailed
from exocli.options import build
from exocli.runtime import wire
from exocli.runtime.loop import Emit, Loop, StepLoop, StreamLoop, describe_error
from exocli.types import to_json

LOADING_EVERY = 0.1
"""Seconds between two `loading` lines: an engine may report each of a thousand arrays."""


def _throttled(emit: Emit) -> ProgressFn:
    last = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LOADING_EVERY or done >= total:
            last = now
            emit({"t": "loading", "done": done, "total": total})

    return progress


def open_loop(order: dict[str, Any], emit: Emit, cancel: CancelToken, log: Callable[[str], None]) -> Loop:
    """Open the engine that the first line asks for and report `ready`. Raises what the engine raises."""
    options = order.get("options") or {}
    cls = load_object(order["open_options"]) if order.get("open_options") else None
    context = OpenContext(
        backend=order["backend"],
        model=order["model"],
        options=build(cls, [options], f"the backend {order['backend']}") if cls else options,
        rank=order.get("rank", 0),
        size=order.get("size", 1),
        cache_dir=Path(order["cache_dir"]),
        defaults=order.get("defaults") or {},
        data=order.get("data") or {},
        log=log,
        progress=_throttled(emit),
        ask=lambda command: emit({"t": "ask", "command": dict(command)}),
        cancel=cancel,
    )
    engine = load_object(order["open"])(context)
    loop: Loop
    if isinstance(engine, StepEngine):
        warm_up_s = engine.warm_up()
        lead = engine.max_lead
        loop = StepLoop(engine, emit, context.rank, context.size)
    elif isinstance(engine, StreamEngine):
        warm_up_s = lead = None
        loop = StreamLoop(engine, emit)
    else:
        raise EngineFailed(f"{order['open']} returned a {type(engine).__name__}, which is not an engine.")
    emit(
        {
            "t": "ready",
            "capabilities": to_json(engine.capabilities),
            "describe": dict(engine.describe()),
            "warm_up_s": warm_up_s,
            "max_lead": lead,
        }
    )
    return loop


def serve(
    lines: Iterator[dict[str, Any]], emit: Emit, gone: Callable[[], None], log: Callable[[str], None]
) -> None:
    """Serve one parent. `lines` is read in a thread of its own; `gone` is called there when it ends."""
    order = next(lines)["open"]
    cancel = CancelToken()
    early: list[dict[str, Any]] = []
    lock = threading.Lock()
    loop: Loop | None = None
    busy = threading.Event()

    def read() -> None:
        try:
            for line in lines:
                with lock:
                    if loop is None:
                        early.append(line)
                        continue
                loop.receive(line)
                busy.set()
        except Exception:  # a line that makes no sense: without a parent to obey there is no use going on
            traceback.print_exc()
        try:
            cancel.cancel("the parent left")
        finally:
            gone()

    def beat() -> None:
        # While there is nothing to do the thread sleeps on the event: an idle worker costs no CPU.
        while busy.wait() and not over.is_set():
            if loop is not None and not loop.live:
                busy.clear()
                if not loop.live:
                    continue
                busy.set()
            emit({"t": "beat", "step": loop.steps if loop is not None else 0})
            over.wait(wire.BEAT)

    over = threading.Event()
    threading.Thread(target=read, name="exo-read", daemon=True).start()
    busy.set()
    threading.Thread(target=beat, name="exo-beat", daemon=True).start()
    try:
        try:
            opened = open_loop(order, emit, cancel, log)
        except BaseException as error:  # a sys.exit() of the engine's, or its own raise_if_cancelled()
            emit({"t": "failed", "error": describe_error(error)})
            return
        with lock:
            loop = opened
            for line in early:
                loop.receive(line)
        busy.set()
        loop.run()
    finally:
        over.set()
        busy.set()


def _end_all() -> NoReturn:
    """End this process and what it started; its parent is not there to do it."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def main() -> None:
    # The terminal's Ctrl-C is the parent's affair; the parent tells us in the log.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Our stdout is the protocol. A library that prints must not reach it: fd 1 becomes stderr.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    lock = threading.Lock()

    def emit(line: wire.Line) -> None:
        data = wire.encode(line)
        with lock:
            try:
                view = memoryview(data)
                while view:
                    view = view[out.write(view) :]
            except BrokenPipeError:
                _end_all()

    # So is our stdin: what a library reads, or a child that it starts, is empty.
    stdin = os.fdopen(os.dup(0), "rb", buffering=1 << 16)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    emit({"t": "hello", "wire": wire.VERSION, "pid": os.getpid()})
    first = stdin.readline()
    if not first:
        os._exit(0)
    order = wire.decode(first)
    if order.get("wire") != wire.VERSION:
        text = (
            f"The worker speaks wire version {wire.VERSION}, its parent {order.get('wire')}: "
            "install one version of exocli everywhere."
        )
        emit({"t": "failed", "error": EngineFailed(text).to_dict()})
        os._exit(1)
    # ssh passes no environment: what the rank needs of one comes in the first line, before any import.
    os.environ.update(order["open"].get("env") or {})

    def lines() -> Iterator[dict[str, Any]]:
        yield order
        for raw in stdin:
            yield wire.decode(raw)

    status = 1
    try:
        # End of stdin: the parent is gone, however it went. The main thread may sit in a collective.
        serve(lines(), emit, gone=_end_all, log=lambda text: print(text, file=sys.stderr, flush=True))
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)  # no destructors: a half-torn-down GPU or ring must not keep the process


if __name__ == "__main__":
    main()
