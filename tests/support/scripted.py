"""A real StepEngine for the tests of the server: it says what the request tells it to, one piece a step.

The last user message is the reply, piece by piece (words with the blanks after them). Words that do
something while the prompt is prefilled, one word a step: `die`, `raise`, `hang` as in engines.py, and
`slow` (0.1 s). In the reply: `forever` begins again and again; a message that is a JSON list is a script
of ["text", "…"], ["reasoning", "…"], ["tool", name, arguments], ["raise"], ["die"] and ["stop", string?].
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exocli import (
    BackendSpec,
    BadRequest,
    CancelToken,
    Capabilities,
    ContextOverflow,
    Event,
    Finished,
    OpenContext,
    Prepared,
    Progress,
    Reasoning,
    Receipt,
    Request,
    RouteSpec,
    StepEngine,
    Text,
    ToolCall,
    Usage,
    WorkerSpec,
    hookimpl,
)

CONTEXT = 5000
CAPABILITIES = Capabilities(
    inputs=("text", "image"),
    max_concurrency=4,
    context=CONTEXT,
    tools=True,
    reasoning=True,
    schema=True,
    logprobs=True,
    seed=True,
    penalties=True,
    continue_last=True,
    cancel_prefill="chunk",
    kv_on_cancel="kept",
)
PLAIN = Capabilities(max_concurrency=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    load_s: float = 0.0
    fail_open: str = ""
    pace_s: float = 0.002
    plain: bool = False


@dataclass
class Live:
    prepared: Prepared
    cancel: CancelToken
    processed: int
    cached: int
    at: int = 0
    said: int = 0
    calls: int = 0
    script: list[list[Any]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.prepared.prompt_tokens

    @property
    def usage(self) -> Usage:
        return Usage(prompt_tokens=self.total, cached_tokens=self.cached, completion_tokens=self.said)


class ScriptedEngine(StepEngine):
    def __init__(self, context: OpenContext) -> None:
        self.context = context
        self.capabilities = PLAIN if context.options.plain else CAPABILITIES
        self.live: dict[str, Live] = {}
        self.kept: dict[tuple[str, ...], int] = {}

    def describe(self) -> dict[str, Any]:
        return {"dtype": "words", "context": CONTEXT, "weight_bytes": 1234}

    def prepare(self, request: Request) -> Prepared:
        if request.task == "complete":
            text = last = request.prompt or ""
        else:
            texts = [_text(m.content) for m in request.messages]
            text, last = " ".join(texts), texts[-1]
        words = text.split()
        if "refuse" in words:
            raise BadRequest("This word is refused.", field="messages")
        if len(words) >= CONTEXT:
            message = f"The prompt has {len(words)} tokens; this engine takes {CONTEXT}."
            raise ContextOverflow(message, prompt_tokens=len(words), context=CONTEXT)
        if last.startswith("["):
            script = json.loads(last)
        else:
            script = [["text", piece] for piece in re.findall(r"\s*\S+\s*|\s+", last)]
        return Prepared(
            id=request.id,
            prompt_tokens=len(words),
            max_tokens=request.max_tokens or 1 << 30,
            settings={
                "words": words,
                "script": script,
                "forever": "forever" in words,
                "logprobs": request.logprobs,
                "stop": list(request.stop),
            },
        )

    def submit(self, prepared: Prepared, cancel: CancelToken) -> None:
        words = tuple(prepared.settings["words"])
        cached = min(self.kept.get(words, 0), len(words))
        script = list(prepared.settings["script"])
        self.live[prepared.id] = Live(prepared, cancel, cached, cached, script=script)

    def step(self) -> Sequence[Event]:
        events: list[Event] = []
        for live in list(self.live.values()):
            events.extend(self.advance(live))
        time.sleep(self.context.options.pace_s)
        return events

    def advance(self, live: Live) -> list[Event]:
        request_id, settings = live.prepared.id, live.prepared.settings
        words = settings["words"]
        if live.cancel.cancelled:
            phase = "prefill" if live.processed < live.total else "decode"
            kept = self.kept[tuple(words)] = live.processed
            receipt = Receipt(phase=phase, processed=live.processed, total=live.total, kept_tokens=kept)
            return [self.end(live, "cancelled", cancel=receipt)]
        if live.processed < live.total:
            act(words[live.processed])
            live.processed += 1
            return [Progress(id=request_id, processed=live.processed, total=live.total, cached=live.cached)]
        if live.said >= live.prepared.max_tokens:
            return [self.end(live, "length")]
        if live.at >= len(live.script):
            if not settings["forever"]:
                return [self.end(live, "tool_calls" if live.calls else "stop")]
            live.at = 0
        kind, *rest = live.script[live.at]
        live.at += 1
        if kind == "stop":
            return [self.end(live, "stop", stop=rest[0] if rest else None)]
        live.said += 1
        if kind == "reasoning":
            return [Reasoning(id=request_id, text=rest[0])]
        if kind == "tool":
            live.calls += 1
            index = live.calls - 1
            name, arguments = rest
            return [
                ToolCall(id=request_id, index=index, call_id=f"call_{index}", name=name, arguments=arguments)
            ]
        if kind != "text":
            act(kind)
        if rest[0].strip() in settings["stop"]:
            return [self.end(live, "stop", stop=rest[0].strip())]
        return [Text(id=request_id, text=rest[0], logprobs=logprobs(rest[0], settings["logprobs"]))]

    def end(self, live: Live, reason: Any, **more: Any) -> Finished:
        del self.live[live.prepared.id]
        return Finished(id=live.prepared.id, reason=reason, usage=live.usage, **more)

    def close(self) -> None:
        pass


def _text(content: Any) -> str:
    if isinstance(content, tuple):
        return "".join(
            f"<{part.media_type} {size(part.path)}>" if part.path else part.text for part in content
        )
    return content or ""


def size(path: str) -> int:
    return Path(path).stat().st_size


def logprobs(text: str, top: int | None) -> list[dict[str, Any]] | None:
    if top is None:
        return None
    alternatives = [[text, 1, -0.5], ["other", 2, float("-inf")]][:top]
    return [{"token": text, "id": 1, "logprob": -0.5, "top": alternatives}]


def act(word: str) -> None:
    if word == "die":
        os.kill(os.getpid(), 9)
    if word == "raise":
        raise ValueError("the word was raise")
    if word == "hang":
        time.sleep(3600)
    if word == "slow":
        time.sleep(0.1)


def open_scripted(context: OpenContext) -> ScriptedEngine:
    if context.options.fail_open:
        raise BadRequest(context.options.fail_open)
    parts = 10
    for done in range(parts):
        time.sleep(context.options.load_s / parts)
        context.progress(done + 1, parts)
    return ScriptedEngine(context)


def launch(ref: object, options: Options) -> list[WorkerSpec]:
    return [WorkerSpec()]


@hookimpl
def exo_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            name=name,
            summary="says what it is told to",
            api=1,
            protocol="step",
            place="worker",
            open="tests.support.scripted:open_scripted",
            open_options="tests.support.scripted:Options",
            launch="tests.support.scripted:launch",
            capabilities=capabilities,
        )
        for name, capabilities in (("scripted", CAPABILITIES), ("plain", PLAIN))
    ]


@hookimpl
def exo_server_routes() -> list[RouteSpec]:
    return [
        RouteSpec(name="scripted", routes="tests.support.scripted:routes"),
        RouteSpec(name="broken", routes="tests.support.scripted:no_such_function"),
        RouteSpec(name="quits", routes="tests.support.scripted:quits"),
    ]


def quits(context: Any) -> list[Any]:
    raise SystemExit(3)


def routes(context: Any) -> list[Any]:
    """/x/scripted/names, and /x/scripted/say?text=…, which answers with the reply."""
    from starlette.requests import Request as HttpRequest
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def names(http: HttpRequest) -> JSONResponse:
        return JSONResponse(context.models())

    async def say(http: HttpRequest) -> JSONResponse:
        request = Request(id="from-a-plugin", prompt=http.query_params["text"], task="complete")
        said = []
        async for event in context.stream(request):
            if isinstance(event, Text):
                said.append(event.text)
            if len(said) == 5:  # leaving early is a cancel
                break
        return JSONResponse("".join(said))

    return [Route("/names", names), Route("/say", say)]
