"""The data that travels: requests in, events out. Frozen, plain, JSON-shaped.

Events here are exactly the JSON lines of `exo run --json`; `to_json` and `event_from_json` are the only
codec. Token ids never appear in a Request: the engine owns template, tokenizer and parsers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeAlias

JSON: TypeAlias = Any
Task = Literal["chat", "complete", "embed", "image"]
Phase = Literal["queued", "loading", "prefill", "decode"]
Reason = Literal["stop", "length", "tool_calls", "content_filter", "cancelled", "error"]


def new_id() -> str:
    """A fresh request id: 24 hex digits."""
    return os.urandom(12).hex()


# ------------------------------------------------------------------------------------------ requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of a message. `text` for text; `path` (a spool file) and `media_type` for the rest."""

    kind: Literal["text", "image", "file"] = "text"
    text: str = ""
    path: str | None = None
    media_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A call that the assistant made in an earlier turn. `arguments` is the JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn. `content` is None where an assistant's turn has only tool calls."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[Part, ...] | None = None
    tool_calls: tuple[ToolUse, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """None means: the config's, else the model's own generation_config.json, else temperature 0."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of an engine. Fields that the capabilities do not name are refused by the core.

    `logprobs`: None off, else how many alternatives a token (0 = the chosen one alone).
    `continue_last`: the last message is an assistant's that is to be continued, not answered.
    `inputs`: the texts of an `embed`, one vector each; `truncate` cuts those that are too long for the
    model, which are refused otherwise; `dimensions`: the length of the vectors, None = the model's own.
    `format`: {"type": "json_object"}, {"type": "json_schema", "schema": {…}, "name"?, "strict"?},
    {"type": "regex", "pattern": "…"} or {"type": "grammar", "syntax": "lark" | "gbnf", "grammar": "…"}.
    `options`: what the backend's `request_options` dataclass takes beyond these.
    """

    id: str = field(default_factory=new_id)
    task: Task = "chat"
    model: str = ""
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[Mapping[str, JSON], ...] = ()
    tool_choice: JSON = None
    format: Mapping[str, JSON] | None = None
    logprobs: int | None = None
    reasoning: bool | str | None = None
    template_kwargs: Mapping[str, JSON] = field(default_factory=dict)
    continue_last: bool = False
    inputs: tuple[str, ...] = ()
    truncate: bool = False
    dimensions: int | None = None
    options: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A validated request, as the log carries it to every rank: nothing in it is left to decide.

    `tokens` are the prompt's ids (of an `embed` those of all texts, one after the other); `settings` is
    the engine's own plain data (end tokens, stop strings, sampling), the same bytes on every rank;
    `reuse` names a kept KV cache and how many of its tokens serve; `prompt_tokens` and `max_tokens` are
    what admission counts.
    """

    id: str
    prompt_tokens: int
    max_tokens: int
    tokens: tuple[int, ...] = ()
    settings: Mapping[str, JSON] = field(default_factory=dict)
    reuse: Mapping[str, JSON] | None = None


# -------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    id: str
    model: str
    backend: str
    v: int = 1
    type: Literal["started"] = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Before the first chunk. `position` while queued; `done`, `total` (bytes or layers) and `rank`
    while loading; `text` a short note for a person."""

    id: str
    phase: Literal["queued", "loading"]
    position: int | None = None
    done: int | None = None
    total: int | None = None
    rank: int | None = None
    text: str | None = None
    type: Literal["status"] = "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Prompt tokens whose KV exists now. `processed` includes `cached`."""

    id: str
    processed: int
    total: int
    cached: int = 0
    type: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A piece of the answer. `logprobs`: a list of {token, id, logprob, top: [[token, id, logprob]…]}."""

    id: str
    text: str
    logprobs: list[dict[str, JSON]] | None = None
    type: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    id: str
    text: str
    type: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One whole call; `arguments` is JSON text."""

    id: str
    index: int
    call_id: str
    name: str
    arguments: str
    type: Literal["tool_call"] = "tool_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """What an `embed` makes of `Request.inputs[index]`. Every text has one; they come in any order."""

    id: str
    index: int
    vector: tuple[float, ...]
    type: Literal["embedding"] = "embedding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds and tokens a second. `ttft_s` runs from the request to its first text."""

    ttft_s: float = 0.0
    prefill_tps: float = 0.0
    decode_tps: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a cancel did. `processed` counts prompt tokens, cached ones included; `kept_tokens` is how
    much of the KV cache outlives the reply; `latency_ms` from the asking to the last rank's leaving.
    `kept_tokens` and `ranks` are None where a remote server does not say."""

    phase: Phase
    processed: int = 0
    total: int = 0
    kept_tokens: int | None = 0
    ranks: int | None = 1
    latency_ms: float = 0.0
    confirmed: bool = True
    killed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Exactly one a request, always last. `stop` is the stop string that matched."""

    id: str
    reason: Reason
    stop: str | None = None
    usage: Usage = field(default_factory=Usage)
    timing: Timing = field(default_factory=Timing)
    cancel: Receipt | None = None
    error: dict[str, JSON] | None = None
    type: Literal["finished"] = "finished"


Event: TypeAlias = Started | Status | Progress | Text | Reasoning | ToolCall | Embedding | Finished
EVENT_TYPES: dict[str, type[Event]] = {
    "started": Started,
    "status": Status,
    "progress": Progress,
    "text": Text,
    "reasoning": Reasoning,
    "tool_call": ToolCall,
    "embedding": Embedding,
    "finished": Finished,
}
_NESTED: dict[str, type[Usage | Timing | Receipt]] = {"usage": Usage, "timing": Timing, "cancel": Receipt}
_NAMES: dict[type, frozenset[str]] = {
    cls: frozenset(f.name for f in fields(cls)) for cls in (*EVENT_TYPES.values(), *_NESTED.values(), Request)
}
"""Of their fields, found once and not once a token."""
_SCALARS = frozenset({float, int, str, bool, type(None)})
# None is an answer here, not an absence: a remote server that did not say.
_KEEP_NONE = frozenset({"kept_tokens", "ranks"})


def to_json(value: Any) -> JSON:
    """Dataclasses to plain JSON data; `type` first, absent (None) fields left out."""
    if type(value) in _SCALARS:  # first: a vector has hundreds
        return value
    if is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in fields(value)]
        if "type" in names:
            names = ["type", *(n for n in names if n != "type")]
        pairs = ((name, getattr(value, name)) for name in names)
        return {name: to_json(v) for name, v in pairs if v is not None or name in _KEEP_NONE}
    if isinstance(value, Mapping):
        return {str(key): to_json(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def event_from_json(data: Mapping[str, JSON]) -> Event | None:
    """The inverse of to_json for events; None for a type that this version does not know."""
    cls = EVENT_TYPES.get(str(data.get("type")))
    if cls is None:
        return None
    names = _NAMES[cls]
    kwargs = {key: value for key, value in data.items() if key in names}
    for name, nested in _NESTED.items():
        if isinstance(kwargs.get(name), Mapping):
            known = _NAMES[nested]
            kwargs[name] = nested(**{k: v for k, v in kwargs[name].items() if k in known})
    if cls is Embedding:
        kwargs["vector"] = tuple(kwargs["vector"])
    return cls(**kwargs)


def request_from_json(data: Mapping[str, JSON]) -> Request:
    """The inverse of to_json for requests, between our own processes (no validation)."""
    known = _NAMES[Request]
    kwargs = {key: value for key, value in data.items() if key in known}
    kwargs["messages"] = tuple(message_from_json(m) for m in kwargs.get("messages", ()))
    sampling = dict(kwargs.get("sampling") or {})
    if sampling.get("logit_bias"):
        sampling["logit_bias"] = {int(k): float(v) for k, v in sampling["logit_bias"].items()}
    kwargs["sampling"] = Sampling(**sampling)
    for name in ("stop", "tools", "inputs"):
        kwargs[name] = tuple(kwargs.get(name) or ())
    return Request(**kwargs)


def message_from_json(data: Mapping[str, JSON]) -> Message:
    kwargs = dict(data)
    content = kwargs.get("content")
    if isinstance(content, list):
        kwargs["content"] = tuple(Part(**part) for part in content)
    kwargs["tool_calls"] = tuple(ToolUse(**call) for call in kwargs.get("tool_calls") or ())
    return Message(**kwargs)


def prepared_from_json(data: Mapping[str, JSON]) -> Prepared:
    kwargs = dict(data)
    kwargs["tokens"] = tuple(kwargs.get("tokens") or ())
    return Prepared(**kwargs)
