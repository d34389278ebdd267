"""Two backends to chat with that need no model: `talker` in a worker process, `silent` inside the chat.

talker reads a word a step and answers "heard N: " and the last message's words, a word a step.
Words that do something: `slowly` (every step takes 30 ms), `forever`, `die` (SIGKILL itself when read),
`deaf` (does not hear a cancel), `toolong` (over the context), `nothing` (an empty answer), `briefly`,
`escape` (control sequences), `ponder` (it thinks first, unless told not to), `call` (it calls a tool),
`format` (answers with the format that was asked for). A base model (load=base) only goes on with a text.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from exocli import (
    BackendSpec,
    BadRequest,
    CancelToken,
    Capabilities,
    Event,
    Finished,
    ModelBroken,
    OpenContext,
    Prepared,
    Progress,
    Reasoning,
    Receipt,
    Request,
    StepEngine,
    StreamEngine,
    Text,
    ToolCall,
    Usage,
    hookimpl,
)
from exocli.errors import ContextOverflow

CAPABILITIES = Capabilities(
    max_concurrency=4,
    context=1000,
    cancel_prefill="chunk",
    kv_on_cancel="kept",
    continue_last=True,
    seed=True,
    schema=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    load: Literal["fast", "hang", "fail", "base"] = "fast"


@dataclass
class Job:
    words: list[str]
    last: list[str]
    answer: list[str]
    limit: int
    cancel: CancelToken
    cached: int
    read: int
    said: int = 0


class Talker(StepEngine):
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.kept: list[list[str]] = []

    def prepare(self, request: Request) -> Prepared:
        said = [str(message.content) for message in request.messages] or [request.prompt or ""]
        words, last = " ".join(said).split(), said[-1].split()
        if "toolong" in last:
            text = "The prompt has 1,500 tokens, the model's context holds 1,000."
            raise ContextOverflow(text, prompt_tokens=1500, context=1000)
        if request.sampling.temperature == 13:
            raise BadRequest("temperature 13 is unlucky.", field="temperature")
        answer = ["heard", f"{len(request.messages)}:", *last]
        if request.continue_last:
            answer = ["and", "so", "on"]
        if "briefly" in last:
            answer = [*answer[:2], "briefly"]
        if "nothing" in last:
            answer = []
        if "format" in last:
            answer = [json.dumps(request.format)]
        if request.continue_last and request.messages[-1].reasoning:
            answer = ["~then", *answer]
        if "ponder" in last and request.reasoning is not False:
            answer = ["~hmm", "~well", *answer]
        if "escape" in last:
            answer = ["\x1b[2J\x1b]0;title\x07red\x9b31m"]
        settings = {"words": words, "last": last, "answer": answer}
        return Prepared(
            id=request.id, prompt_tokens=len(words), max_tokens=request.max_tokens or 99, settings=settings
        )

    def submit(self, prepared: Prepared, cancel: CancelToken) -> None:
        settings = prepared.settings
        cached = max((_common(settings["words"], kept) for kept in self.kept), default=0)
        self.jobs[prepared.id] = Job(
            words=settings["words"],
            last=settings["last"],
            answer=settings["answer"],
            limit=prepared.max_tokens,
            cancel=cancel,
            cached=cached,
            read=cached,
        )

    def step(self) -> Sequence[Event]:
        events: list[Event] = []
        for request_id, job in list(self.jobs.items()):
            threading.Event().wait(0.03 if "slowly" in job.last else 0.002)
            usage = Usage(prompt_tokens=len(job.words), cached_tokens=job.cached, completion_tokens=job.said)
            if job.cancel.cancelled and "deaf" not in job.last:
                phase: Literal["prefill", "decode"] = "prefill" if job.read < len(job.words) else "decode"
                self.end(request_id)
                receipt = Receipt(phase=phase, processed=job.read, total=len(job.words), kept_tokens=job.read)
                events.append(Finished(id=request_id, reason="cancelled", cancel=receipt, usage=usage))
            elif job.read < len(job.words):
                if job.words[job.read] == "die":
                    os.kill(os.getpid(), 9)
                job.read += 1
                total = len(job.words)
                events.append(Progress(id=request_id, processed=job.read, total=total, cached=job.cached))
            elif job.said >= job.limit:
                self.end(request_id)
                events.append(Finished(id=request_id, reason="length", usage=usage))
            elif job.said < len(job.answer) or "forever" in job.last:
                word = job.answer[job.said % len(job.answer)]
                job.said += 1
                events.append(_event(request_id, word))
            else:
                self.end(request_id)
                events.append(Finished(id=request_id, reason="stop", usage=usage))
        return events

    def end(self, request_id: str) -> None:
        job = self.jobs.pop(request_id)
        self.kept.append(job.words[: job.read])

    def close(self) -> None:
        pass


def _event(request_id: str, word: str) -> Event:
    if word.startswith("~"):
        return Reasoning(id=request_id, text=f"{word[1:]} ")
    if word == "call":
        return ToolCall(id=request_id, index=0, call_id="c1", name="weather", arguments='{"city": "Rome"}')
    return Text(id=request_id, text=f"{word} ")


def _common(one: list[str], other: list[str]) -> int:
    """Words at the beginning of both, the last word of `one` never counted."""
    count = 0
    while count < min(len(one) - 1, len(other)) and one[count] == other[count]:
        count += 1
    return count


def open_talker(context: OpenContext) -> StepEngine:
    context.log("opening")
    context.progress(1, 3)
    if context.options.load == "fail":
        raise ModelBroken("The talker's weights are cut off.")
    if context.options.load == "hang":
        threading.Event().wait()
    context.progress(3, 3)
    talker = Talker()
    if context.options.load == "base":
        talker.capabilities = replace(CAPABILITIES, tasks=("complete",))
    return talker


class Silent(StreamEngine):
    """Says nothing until the file TALKER_GO exists."""

    capabilities = CAPABILITIES

    async def stream(self, request: Request, cancel: CancelToken) -> AsyncIterator[Event]:
        go = Path(os.environ["TALKER_GO"])
        while not go.exists():
            if cancel.cancelled:
                receipt = Receipt(phase="prefill", kept_tokens=None, ranks=None, confirmed=False)
                yield Finished(id=request.id, reason="cancelled", cancel=receipt)
                return
            await asyncio.sleep(0.01)
        yield Text(id=request.id, text="at last")
        yield Finished(id=request.id, reason="stop")


def open_silent(context: OpenContext) -> StreamEngine:
    return Silent()


@hookimpl
def exo_backends() -> Iterable[BackendSpec]:
    yield BackendSpec(
        name="talker",
        summary="for the tests of the chat",
        api=1,
        protocol="step",
        place="worker",
        open="tests.chat.talker:open_talker",
        open_options="tests.chat.talker:Options",
        capabilities=CAPABILITIES,
    )
    yield BackendSpec(
        name="silent",
        summary="for the tests of the chat",
        api=1,
        protocol="stream",
        place="inline",
        open="tests.chat.talker:open_silent",
        capabilities=CAPABILITIES,
    )
