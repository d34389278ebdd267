"""What a backend is: the plain description a plugin hands in, and what its parts answer.

A plugin author reads this file, `engine.py` and `hookspecs.py`, nothing else. Describing is cheap: every
heavy thing is named by a string "module:attribute" that is imported on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from exocli.cancel import CancelToken

if TYPE_CHECKING:  # for annotations alone: `exo --help` does without this module
    from exocli.types import JSON, Task

API = 1
"""The plugin API's number. A spec that asks for another one is reported and left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do. The core refuses, by field name, a request that asks for more.

    `context` is in tokens, None = unknown. `cancel_prefill="chunk"` means that a cancel is honoured
    between prefill chunks; "none" that the prefill is finished first, which the chat then says.
    `reasoning`: the model may think before it answers.
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
    reasoning: bool = False
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
class Variant:
    """What `exo bench` opens beside an engine, with the same model, to compare the two: with some `options`
    changed, or on another `backend` by name, whose options these are. `measure`: "decode" or "prefill" side
    by side and in turns, or "cancel", how soon a cancel is done there."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    backend: str | None = None
    measure: Literal["decode", "prefill", "cancel"] = "decode"


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
    variants:        (options, facts of the opened engine) -> Iterable[Variant], for `exo bench` to compare
    figures:         (OpenContext) -> engine like `open`'s that measures itself, for `exo bench`: the last
                     Text of a reply is what it found so far, as JSON, {"what": {"name": 0.5}}
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
    variants: str | None = None
    figures: str | None = None
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
