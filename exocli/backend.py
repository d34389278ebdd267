"""What a backend is: the plain description a plugin hands in, and the engines it can open.

A plugin author reads this file and `hookspecs.py`, nothing else. Describing is cheap: every heavy
thing is named by a string "module:attribute" that is imported on first use.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from exocli.cancel import CancelToken
from exocli.errors import BadRequest, Unsupported

if TYPE_CHECKING:  # for annotations alone: `exo --help` does without these modules
    from exocli.types import JSON, Event, Prepared, Request, Task

API = 1
"""The plugin API's number. A spec that asks for another one is reported and left out."""


# --------------------------------------------------------------------------------------- descriptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do. The core refuses, by field name, a request that asks for more.

    `context` is in tokens, None = unknown. `cancel_prefill="chunk"` means that a cancel is honoured
    between prefill chunks; "none" that the prefill is finished first, which the chat then says.
    `kv_on_cancel="kept"` means that asking again resumes where the cancel stopped.
    `kv_tokens`: how many tokens of KV cache memory holds for all running requests together (prompt and
    max_tokens of each); the core queues those that do not fit. None = no bound. `kv_padded`: a batch takes
    the room of its longest request for each.
    """

    tasks: tuple[Task, ...] = ("chat", "complete")
    inputs: tuple[Literal["text", "image", "file"], ...] = ("text",)
    max_concurrency: int = 1
    context: int | None = None
    tools: bool = False
    schema: bool = False
    logprobs: bool = False
    seed: bool = False
    penalties: bool = False
    continue_last: bool = False
    cancel_prefill: Literal["chunk", "none"] = "none"
    cancel_decode: Literal["token", "none"] = "token"
    kv_on_cancel: Literal["kept", "dropped"] = "dropped"
    kv_tokens: int | None = None
    kv_padded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """How to start one rank. `prefix` goes before the command (`("ssh", "host")`), `env` and `data`
    reach the worker in its first stdin line (ssh passes no environment), `python` names its
    interpreter (default: this one)."""

    rank: int = 0
    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    host: str = "this machine"
    data: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A model by name, resolved as far as names go (exocli/names.py); no file has been looked at.

    kind "path": `name` is a path. kind "hub": `name` is ORG/NAME, `revision` optional. kind "builtin":
    an alias that a backend brings with it. `entry` is the `[models.NAME]` table, if there is one.
    """

    kind: Literal["path", "hub", "builtin"]
    name: str
    revision: str | None = None
    entry: Mapping[str, JSON] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One model that is here. `size` in bytes on disk; `details` is free (layers, dtype, context …);
    `tasks`: what it is for, as far as its files tell; empty = they do not."""

    name: str
    path: str
    size: int
    source: str
    details: Mapping[str, JSON] = field(default_factory=dict)
    tasks: tuple[Task, ...] = ()


ProgressFn = Callable[[int, int], None]
"""progress(done, total), in bytes for a pull and in the engine's own unit for a load."""


class ModelSource(Protocol):
    """What `exo models` asks of a backend. Everything but `download_size` and `pull` is offline.

    Errors: ModelNotFound, ModelBroken, Unavailable (no network, disk full), each one sentence.
    """

    def models(self) -> Iterable[ModelInfo]:
        """What is here, for listing and completion; fast."""

    def aliases(self) -> Mapping[str, str]:
        """Built-in names this backend can pull, each with one line about it."""

    def locate(self, ref: ModelRef) -> Path | None:
        """The local folder or file, or None if it is not here."""

    def accepts(self, ref: ModelRef) -> bool:
        """Could this backend run it? By name and files, offline; True for one that is not here yet
        if it could be pulled."""

    def show(self, ref: ModelRef) -> ModelInfo:
        """Details of one that is here; raises ModelNotFound."""

    def download_size(self, ref: ModelRef) -> int | None:
        """Bytes a pull would fetch, None = unknown; may ask the network."""

    def pull(self, ref: ModelRef, progress: ProgressFn, cancel: CancelToken) -> ModelInfo:
        """Fetch, verify, make ready. Resumes; leaves nothing half-done; two at once are safe."""

    def remove(self, ref: ModelRef) -> int:
        """Delete it; returns the bytes freed; raises ModelNotFound."""

    def import_file(self, path: Path, name: str | None, progress: ProgressFn) -> ModelInfo:
        """Convert a model file (GGUF) into models/; raises ModelBroken before anything is written."""


class Catalog(Protocol):
    """For a backend whose models are a server's: nothing of theirs is on this machine."""

    def models(self) -> Iterable[ModelInfo]:
        """What was seen on servers, for listing and completion; from a cache, offline, fast. `source` is
        the server's address."""

    def ask(self, options: Any) -> Sequence[str]:
        """What the server that `options` (an instance of `open_options`) names has now, the default one
        first; empty where it does not tell. Asks the network. Raises Unavailable, UpstreamError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """`probe`'s answer. `reason` and `hint` say what is missing and how to get it."""

    ok: bool
    reason: str = ""
    hint: str = ""
    rank: int = 0
    """Higher wins when no backend was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of `exo doctor`. "warning" works, but worse than it could; "problem" does not work.
    `hint` is the way out."""

    name: str
    text: str
    state: Literal["ok", "warning", "problem"] = "ok"
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """A backend, as `exo_backends` hands it in. Strings are "module:attribute".

    open:            (OpenContext) -> StepEngine | StreamEngine
    open_options:    frozen dataclass of what `-o` and `[backends.NAME]` accept
    request_options: frozen dataclass of what a request's `options` may carry
    probe:           () -> Availability; fast, offline
    models:          () -> ModelSource
    catalog:         () -> Catalog, in place of `models`, where the models are a server's
    launch:          (ModelRef, options) -> Sequence[WorkerSpec]; default one local worker
    doctor:          () -> Iterable[Check]: what `exo doctor` says about it; offline, a few seconds at most
    baseline:        (OpenContext) -> StreamEngine: the same work bare, for `exo bench` to compare with;
                     its requests carry options={"chunk": tokens or None}
    variants:        {name: open options} that should give the same text sooner, for `exo bench` to compare
                     with the same model without them
    """

    name: str
    summary: str
    api: int
    protocol: Literal["step", "stream"]
    place: Literal["worker", "inline"]
    open: str
    open_options: str | None = None
    request_options: str | None = None
    probe: str | None = None
    models: str | None = None
    catalog: str | None = None
    launch: str | None = None
    doctor: str | None = None
    baseline: str | None = None
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    capabilities: Capabilities = Capabilities()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A command of the `exo` program. `command` is "module:click_command"."""

    name: str
    help: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec:
    """Routes under /x/NAME/ of `exo serve`. `routes` is "module:function(context) -> list[Route]"."""

    name: str
    routes: str


def load_object(reference: str) -> Any:
    """Import "module:attribute"; ImportError or AttributeError as they come."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


# -------------------------------------------------------------------------------------------- engines


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenContext:
    """What an engine is opened with.

    `model` is the local path (or the name, for a backend without a model source); `options` an
    instance of `open_options`; `defaults` the config's sampling for this model; `cache_dir` a folder
    of the backend's own; `log(text)` goes to the worker's log; `progress(done, total)` while loading;
    `ask(command)` appends a command of the engine's own to the log, which then reaches `apply` on
    every rank at the same step; `data` is the rank's `WorkerSpec.data`.
    """

    backend: str
    model: str
    options: Any
    rank: int = 0
    size: int = 1
    cache_dir: Path
    defaults: Mapping[str, JSON] = field(default_factory=dict)
    data: Mapping[str, JSON] = field(default_factory=dict)
    log: Callable[[str], None]
    progress: ProgressFn
    ask: Callable[[Mapping[str, JSON]], None]
    cancel: CancelToken


class EngineBase:
    """`capabilities` narrows the spec's upper bound to what this model can do."""

    capabilities: Capabilities = Capabilities()

    def describe(self) -> Mapping[str, JSON]:
        """Plain facts for `ps`, `-v` and the web page (layers, dtype, memory …)."""
        return {}


class StepEngine(EngineBase, ABC):
    """An engine that the core drives, one boundary at a time; every rank runs the same calls.

    All calls but `prepare` come from one thread, the one that opened the engine.
    """

    max_lead: int | None = None
    """How many steps rank 0, which leads, may be ahead of the last rank; None = no bound (one rank)."""

    @abstractmethod
    def prepare(self, request: Request) -> Prepared:
        """Template, tokenize, validate, count, draw the seed. On a side thread of rank 0.
        Raises BadRequest: then nothing has happened."""

    @abstractmethod
    def submit(self, prepared: Prepared, cancel: CancelToken) -> None:
        """Take the request into the batch at the next step. An error fails this request alone."""

    @abstractmethod
    def step(self) -> Sequence[Event]:
        """At most one prefill chunk and one decode token for every live request; of an `embed` at most
        a bounded batch of its texts, a Progress and an Embedding for each. Look at each
        request's cancel token first: drop the cancelled ones, keep their KV, and answer
        `Finished("cancelled")` with phase, processed, total and kept_tokens. Exactly one Finished a
        request, in the same step on every rank. An exception here ends the worker."""

    @abstractmethod
    def close(self) -> None: ...

    def agree(self, received: int) -> int:
        """The number of the last command that this step applies, the same on every rank."""
        return received

    def tune(self, chunk: int) -> None:
        """Prefill at most `chunk` tokens a step, over all prompts together."""

    def apply(self, command: Mapping[str, JSON]) -> None:
        """A command that `OpenContext.ask` put into the log."""

    def warm_up(self) -> float | None:
        """Run one small chunk and one token; seconds the chunk took and None if there is no such thing.
        Its size is WARM_UP_CHUNK tokens."""
        return None

    def last_step(self) -> Mapping[str, JSON]:
        """About the step just made, for the chunk tuner: {"prefill_tokens": n, "decoded": m}."""
        return {}


WARM_UP_CHUNK = 32
"""Tokens of the warm-up's prefill chunk, and the smallest chunk that tuning chooses."""


class StreamEngine(EngineBase, ABC):
    """An engine that produces a request's events by itself (a client of a server, a callback API).

    `stream` ends with exactly one Finished; on cancel it stops soon and finishes "cancelled".
    """

    @abstractmethod
    def stream(self, request: Request, cancel: CancelToken) -> AsyncIterator[Event]: ...

    async def count_tokens(self, request: Request) -> int | None:
        return None

    async def aclose(self) -> None:
        return None


GENERATOR_AHEAD = 64
"""Events that a blocking generator may be ahead of whoever reads them."""


class _GeneratorEngine(StreamEngine):
    def __init__(
        self, fn: Callable[[Request, CancelToken], Iterator[Event]], capabilities: Capabilities
    ) -> None:
        self._fn = fn
        self.capabilities = capabilities

    async def stream(self, request: Request, cancel: CancelToken) -> AsyncIterator[Event]:
        import asyncio  # here: `exo --help` imports this module, and asyncio is slow to import

        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()
        left = threading.Event()
        room = threading.Semaphore(GENERATOR_AHEAD)  # or a fast one would bury the cancel in its events

        def put(item: Event | BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def run() -> None:
            try:
                for event in self._fn(request, cancel):
                    if not left.is_set():
                        room.acquire()
                        put(event)
                put(None)
            except BaseException as error:  # it crosses to the caller's thread and is raised there
                put(error)

        threading.Thread(target=run, name=f"exo-generator-{request.id}", daemon=True).start()
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                room.release()
                yield item
        finally:
            cancel.cancel("the reader left")
            left.set()
            room.release()


def from_generator(
    fn: Callable[[Request, CancelToken], Iterator[Event]], capabilities: Capabilities | None = None
) -> StreamEngine:
    """A blocking generator as a StreamEngine; each request runs in a thread of its own.

    The generator should look at `cancel.cancelled` as often as it can and end with a Finished.
    """
    return _GeneratorEngine(fn, capabilities or Capabilities())


# ------------------------------------------------------------------------------------------- checking

TASK_WORDS: Mapping[str, str] = {
    "chat": "chat",
    "complete": "complete a text",
    "embed": "make embeddings",
    "image": "make images",
}
"""What a model does, in words for a person, by its task."""


def check_task(task: Task, tasks: Sequence[Task], who: str) -> None:
    """Raises Unsupported that says what `who` is for instead; details: `tasks`."""
    if task not in tasks:
        able = " and ".join(TASK_WORDS.get(one, one) for one in tasks) or "nothing"
        text = f"{who} cannot {TASK_WORDS.get(task, task)}, only {able}."
        raise Unsupported(text, field="task", tasks=list(tasks))


# Many clients always send these; they ask an engine without penalties for nothing.
_NEUTRAL = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}}


def check_supported(request: Request, capabilities: Capabilities, backend: str, model: str = "") -> None:
    """Raises Unsupported, naming the field, for what the capabilities do not name; BadRequest for a chat
    without anything to answer and an embed without texts, so that no engine has to expect one. `model`: the
    capabilities are those of the backend with this model."""
    who = f"{model} on {backend}" if model else f"The backend {backend}"

    def refuse(field_name: str, what: str) -> None:
        raise Unsupported(f"{who} does not offer {what}.", field=field_name)

    check_task(request.task, capabilities.tasks, request.model or f"The backend {backend}")
    if request.task == "embed" and not request.inputs:
        raise BadRequest("There are no texts to embed.", field="input")
    if request.task == "chat" and not request.messages and request.prompt is None:
        raise BadRequest("There are no messages.", field="messages")
    if request.tools and not capabilities.tools:
        refuse("tools", "tools")
    if request.format is not None and not capabilities.schema:
        refuse("format", "structured output")
    if request.logprobs is not None and not capabilities.logprobs:
        refuse("logprobs", "logprobs")
    if request.sampling.seed is not None and not capabilities.seed:
        refuse("seed", "a seed")
    if request.continue_last and not capabilities.continue_last:
        refuse("continue_last", "continuing a reply")
    for name, neutral in _NEUTRAL.items():
        if getattr(request.sampling, name) not in (None, neutral) and not capabilities.penalties:
            refuse(name, name.replace("_", " "))
    for message in request.messages:
        for part in message.content if isinstance(message.content, tuple) else ():
            if part.kind not in capabilities.inputs:
                refuse("messages", f"{part.kind} input")
