"""Small engines for the tests of the runtime: real StepEngines and StreamEngines that need no model.

They run in real worker processes (`-m`-importable because tests/ is on the workers' path).
"""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from exocli import (
    BackendSpec,
    BadRequest,
    CancelToken,
    Capabilities,
    Event,
    Finished,
    ModelNotFound,
    OpenContext,
    Prepared,
    Progress,
    Receipt,
    Request,
    StepEngine,
    StreamEngine,
    Text,
    Usage,
    WorkerSpec,
    from_generator,
)
from exocli.types import Phase

CAPABILITIES = Capabilities(max_concurrency=4, seed=True, cancel_prefill="chunk", kv_on_cancel="kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    ranks: int = 1
    fail_open: bool = False
    hang_open: bool = False
    exit_open: int | None = None
    ignore_cancel: bool = False
    noise: bool = False
    stall_timeout: float | None = None
    quit_open: bool = False
    quit_launch: bool = False
    child: bool = False
    ring: str = ""
    slow_rank: int | None = None
    late_rank: int | None = None
    missing_rank: int | None = None
    kv_tokens: int | None = None
    kv_padded: bool = False


class CountingEngine(StepEngine):
    """Prefills one word a step and answers with the prompt's words, one a step, from the seed's on.

    Words that do something: `die` (SIGKILL itself), `raise`, `hang` (never returns), `forever`
    (never runs out of words), `refuse` (submit raises), `quit` (sys.exit), `odd` (gives something that
    is no event), `input` (reads its stdin); `prepare-die|hang|none|odd|quit|wait` do so in
    prepare.
    """

    def __init__(self, context: OpenContext) -> None:
        self.context = context
        options: Options = context.options
        self.capabilities = replace(CAPABILITIES, kv_tokens=options.kv_tokens, kv_padded=options.kv_padded)
        self.live: dict[str, tuple[Prepared, CancelToken, int, int]] = {}
        self.cached: dict[str, int] = {}
        self.kept: dict[tuple[str, ...], int] = {}
        self.child = subprocess.Popen(["sleep", "600"]) if context.options.child else None

    def describe(self) -> dict[str, Any]:
        return {"child": self.child.pid if self.child else None}

    def prepare(self, request: Request) -> Prepared:
        text = request.prompt or " ".join(str(m.content) for m in request.messages)
        words = text.split()
        if not words:
            raise BadRequest("There is nothing to count.", field="prompt")
        if "prepare-none" in words:
            return None  # type: ignore[return-value]
        for word in words:
            if word.startswith("prepare-") and word != "prepare-odd":
                self.act(word.removeprefix("prepare-"))
        return Prepared(
            id=request.id,
            prompt_tokens=len(words),
            max_tokens=request.max_tokens or 8,
            settings={
                "words": words,
                "seed": request.sampling.seed or 0,
                "odd": object() if "prepare-odd" in words else None,
            },
        )

    def submit(self, prepared: Prepared, cancel: CancelToken) -> None:
        words = prepared.settings["words"]
        if "refuse" in words:
            raise BadRequest("This one is refused.")
        cached = min(self.kept.get(tuple(words), 0), len(words))
        self.live[prepared.id] = (prepared, cancel, cached, 0)
        self.cached[prepared.id] = cached

    def step(self) -> Sequence[Event]:
        events: list[Event] = []
        for request_id, (prepared, cancel, processed, said) in list(self.live.items()):
            words: list[str] = prepared.settings["words"]
            total = len(words)
            cached = self.cached[request_id]
            usage = Usage(prompt_tokens=total, completion_tokens=said, cached_tokens=cached)
            if cancel.cancelled and not self.context.options.ignore_cancel:
                del self.live[request_id]
                self.kept[tuple(words)] = processed
                phase: Phase = "prefill" if processed < total else "decode"
                receipt = Receipt(phase=phase, processed=processed, total=total, kept_tokens=processed)
                events.append(Finished(id=request_id, reason="cancelled", cancel=receipt, usage=usage))
                continue
            if processed < total:
                if words[processed] == "odd":
                    events.append("odd")  # type: ignore[arg-type]
                self.act(words[processed])
                processed += 1
                events.append(Progress(id=request_id, processed=processed, total=total, cached=cached))
            elif said < prepared.max_tokens or "forever" in words:
                said += 1
                word = words[(said - 1 + prepared.settings.get("seed", 0)) % total]
                events.append(Text(id=request_id, text=word + " "))
            elif self.context.options.late_rank == self.context.rank:
                continue
            else:
                del self.live[request_id]
                events.append(Finished(id=request_id, reason="length", usage=usage))
                continue
            self.live[request_id] = (prepared, cancel, processed, said)
        threading.Event().wait(0.02 if self.context.options.slow_rank == self.context.rank else 0.002)
        return events

    def act(self, word: str) -> None:
        if word == "die":
            os.kill(os.getpid(), 9)
        if word == "raise":
            raise ValueError("the word was raise")
        if word == "hang":
            threading.Event().wait()
        if word == "wait":
            threading.Event().wait(0.3)
        if word == "quit":
            sys.exit(3)
        if word == "input":
            assert sys.stdin.read() == ""
        if word == "print":
            print('{"t":"step","n":1,"events":[],"left":[]}', flush=True)
            sys.stdout.flush()

    def close(self) -> None:
        pass


class RingEngine(CountingEngine):
    """Ranks that agree: a header travels from rank 0 to the next through FIFOs of the folder `ring`."""

    def __init__(self, context: OpenContext) -> None:
        super().__init__(context)
        self.max_lead = context.size
        folder, rank = Path(context.options.ring), context.rank
        self._before: BinaryIO | None = None
        self._after: BinaryIO | None = None
        if rank > 0:
            self._before = (folder / f"to-{rank}").open("rb", buffering=0)
        if rank < context.size - 1:
            self._after = (folder / f"to-{rank + 1}").open("wb", buffering=0)

    def agree(self, received: int) -> int:
        upto = received
        if self._before is not None:
            data = self._before.read(8)
            if not data:
                raise ConnectionError("the rank before is gone")
            (upto,) = struct.unpack("q", data)
        if self._after is not None:
            self._after.write(struct.pack("q", upto))
        return upto


def open_counting(context: OpenContext) -> StepEngine:
    options: Options = context.options
    if options.noise:
        print("noise on stdout before the engine", flush=True)
        context.log("a line for the log")
        print("the last words", file=sys.stderr, flush=True)
    if options.fail_open:
        raise ModelNotFound("There is no such thing to count.")
    if options.exit_open is not None:
        os._exit(options.exit_open)
    if options.quit_open:
        sys.exit(3)
    for done in range(3):
        context.progress(done + 1, 3)
    if options.hang_open:
        threading.Event().wait()
    return RingEngine(context) if options.ring else CountingEngine(context)


class EchoStream(StreamEngine):
    """Answers with the prompt's words. Words that do something: `forever` (never ends by itself),
    `raise`, `quit` (sys.exit), `rude` (raises Cancelled on cancel), `odd` (gives something that is no
    event), `stray` (gives another request's), `silent` (ends without a Finished)."""

    def __init__(self) -> None:
        self.capabilities = CAPABILITIES

    async def stream(self, request: Request, cancel: CancelToken) -> AsyncIterator[Event]:
        words = (request.prompt or "").split()
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        cancel.on_cancel(lambda: loop.call_soon_threadsafe(stopped.set))
        said = 0
        while said < len(words) or "forever" in words:
            word = words[said % len(words)]
            if word == "raise":
                raise ValueError("the word was raise")
            if word == "quit":
                sys.exit(3)
            if word == "odd":
                yield "odd"  # type: ignore[misc]
            if word == "stray":
                yield Finished(id="another's", reason="stop")
            if word == "silent":
                return
            if word == "rude":
                await stopped.wait()
                cancel.raise_if_cancelled()
            yield Text(id=request.id, text=words[said % len(words)] + " ")
            said += 1
            try:
                await asyncio.wait_for(stopped.wait(), 0.002)
            except TimeoutError:
                continue
            receipt = Receipt(phase="decode", kept_tokens=None, ranks=None, confirmed=False)
            yield Finished(id=request.id, reason="cancelled", cancel=receipt)
            return
        yield Finished(id=request.id, reason="stop", usage=Usage(completion_tokens=said))


def open_echo(context: OpenContext) -> StreamEngine:
    return EchoStream()


def open_generator(context: OpenContext) -> StreamEngine:
    def run(request: Request, cancel: CancelToken) -> Iterator[Event]:
        words = (request.prompt or "").split()
        said = 0
        while said < len(words) or "forever" in words:
            if cancel.cancelled:
                yield Finished(id=request.id, reason="cancelled", cancel=Receipt(phase="decode"))
                return
            yield Text(id=request.id, text=words[said % len(words)] + " ")
            said += 1
        yield Finished(id=request.id, reason="stop")

    return from_generator(run, CAPABILITIES)


def launch(ref: object, options: Options) -> list[WorkerSpec]:
    if options.quit_launch:
        sys.exit(3)
    if options.ring:
        for rank in range(1, options.ranks):
            path = Path(options.ring) / f"to-{rank}"
            path.unlink(missing_ok=True)
            os.mkfifo(path)
    missing = ("/no/such/program",)
    return [
        WorkerSpec(rank=rank, prefix=missing if options.missing_rank == rank else (), data={"rank": rank})
        for rank in range(options.ranks)
    ]


def spec(protocol: str = "step", place: str = "worker", opener: str = "open_counting") -> BackendSpec:
    return BackendSpec(
        name=f"test-{protocol}-{place}",
        summary="for the tests",
        api=1,
        protocol=protocol,  # type: ignore[arg-type]
        place=place,  # type: ignore[arg-type]
        open=f"tests.support.engines:{opener}",
        open_options="tests.support.engines:Options",
        launch="tests.support.engines:launch",
        capabilities=CAPABILITIES,
    )
