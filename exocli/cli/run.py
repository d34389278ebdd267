"""`exo run`: one prompt, one reply on stdout, for scripts and for people in a hurry.

Ctrl-C cancels, the last line is written, and the process ends as the signal would have ended it; a
second one kills the worker first.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from exocli.cli import prompt_input, pulling, render
from exocli.cli.params import (
    Words,
    backend_option,
    engine_options,
    json_option,
    local_option,
    model_option,
    option,
    pull_option,
    sampling_options,
    system_option,
    think_option,
)
from exocli.cli.render import Globals, pass_globals
from exocli.errors import BadRequest, ExoError, UsageError, from_dict

if TYPE_CHECKING:
    from exocli.runtime.session import Session
    from exocli.types import Event, Finished, Request, Sampling


@click.command()
@click.argument("prompt", type=Words(), required=False)
@model_option
@backend_option
@system_option
@engine_options
@option("-f", "--file", "files", multiple=True, metavar="FILE", type=click.Path(), help="Put a file first.")
@option("--schema", metavar="FILE", type=click.Path(), help="A JSON schema that the reply must follow.")
@json_option
@option("--no-stream", is_flag=True, help="Print the reply when it is whole.")
@option("--no-stdin", is_flag=True, help="Do not read standard input.")
@pull_option
@local_option
@think_option
@sampling_options
@pass_globals
def run(
    settings: Globals,
    prompt: str | None,
    model: str | None,
    backend: str | None,
    system: str | None,
    pairs: tuple[str, ...],
    files: tuple[str, ...],
    schema: str | None,
    as_json: bool,
    no_stream: bool,
    no_stdin: bool,
    pull: bool,
    local: bool,
    think: bool | str | None,
    sampling: Sampling,
    max_tokens: int | None,
    stop: tuple[str, ...],
) -> int:
    """Answer one PROMPT. Standard input and files come before it, so that a next question about the
    same document finds it cached."""
    import asyncio

    from exocli.types import Message, Request

    format = _schema(schema) if schema else None
    text = prompt_input.gather(prompt, files, read_stdin=not no_stdin, note=settings.note)
    chosen, path = pulling.chosen(settings, model, backend, pairs, local=local, pull=pull)
    system = system if system is not None else chosen.system
    messages = (Message(role="system", content=system),) if system else ()
    request = Request(
        model=chosen.model,
        messages=(*messages, Message(role="user", content=text)),
        sampling=sampling,
        max_tokens=max_tokens,
        stop=stop,
        reasoning=think,
        format=format,
    )
    writer = _Json(no_stream) if as_json else _Plain(no_stream)
    session = chosen.session(path, debug=settings.debug)
    try:
        return asyncio.run(_Run(settings, session, request, writer).main())
    except BadRequest as error:
        if schema and error.code == BadRequest.code and error.details.get("field") == "format":
            raise UsageError(f"{schema}: {error.message}") from error
        raise


def _schema(path: str) -> dict[str, Any]:
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text, so no JSON schema.") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply for a JSON schema.") from error
    if not isinstance(schema, dict):
        raise UsageError(f"{path} holds no JSON schema: that is an object.")
    return {"type": "json_schema", "schema": schema}


# ------------------------------------------------------------------------------------------- writing


@dataclass
class _Json:
    """One event a line; with --no-stream one object, the Finished with the whole text, and the thought and
    the calls if there are any."""

    whole: bool
    text: str = ""
    thought: str = ""
    calls: list[Any] = field(default_factory=list)

    def render(self, event: Event) -> str:
        from exocli.types import Finished, Reasoning, Text, ToolCall, to_json

        match event:
            case Text(text=text):
                self.text += text
            case Reasoning(text=text):
                self.thought += text
            case ToolCall():
                self.calls.append(to_json(event))
        data = to_json(event)
        if self.whole:
            if not isinstance(event, Finished):
                return ""
            more = {"reasoning": self.thought, "tool_calls": self.calls}
            data |= {"text": self.text, **{key: value for key, value in more.items() if value}}
        return json.dumps(data, ensure_ascii=False) + "\n"


@dataclass
class _Plain:
    """The reply's text alone, ended by a newline."""

    whole: bool
    text: str = ""

    def render(self, event: Event) -> str:
        from exocli.types import Finished, Text

        if isinstance(event, Text):
            self.text += event.text
            return "" if self.whole else event.text
        if isinstance(event, Finished):
            end = "\n" if self.text and not self.text.endswith("\n") else ""
            return (self.text if self.whole else "") + end
        return ""


# ------------------------------------------------------------------------------------------- running


class _Run:
    def __init__(self, settings: Globals, session: Session, request: Request, writer: _Json | _Plain) -> None:
        from exocli.cli.interrupting import Interruptible

        self._settings = settings
        self._session = session
        self._request = request
        self._writer = writer
        self._guard = Interruptible(session)

    async def main(self) -> int:
        """The exit code; ends the process itself if a signal asked for it."""
        return self._conclude(await self._guard.run(self._answer()))

    async def _answer(self) -> Finished:
        from exocli.cli.progress import reply_progress
        from exocli.types import Finished

        with reply_progress(self._settings) as show:
            async for event in self._events():
                show(event)
                if isinstance(event, Finished) and self._session.spec.place == "worker":
                    event = _kept_nothing(event)  # the worker ends with the command
                await self._guard.output.write(self._writer.render(event))
                if isinstance(event, Finished):
                    break
            else:
                raise ExoError("The session ended without an answer.")
        if facts := render.fact_texts(self._session.facts):
            self._settings.detail(", ".join(facts))
        return event

    async def _events(self) -> AsyncIterator[Event]:
        """The request's events; a base model, which has no chat template, completes the text instead."""
        from exocli.types import Finished, Started

        async for event in self._session.stream(self._request, self._guard.cancel):
            if isinstance(event, Finished) and _wants_completion(event):
                break
            yield event
        else:
            return
        self._settings.note(f"{self._request.model} is a base model: it goes on with the text as it stands.")
        text = "\n\n".join(str(message.content) for message in self._request.messages)
        request = replace(self._request, task="complete", messages=(), prompt=text)
        async for event in self._session.stream(request, self._guard.cancel):
            if not isinstance(event, Started):
                yield event

    def _conclude(self, finished: Finished) -> int:
        if finished.reason == "error":
            raise from_dict(finished.error or {})
        if finished.reason == "length" and finished.usage.reasoning_tokens and not self._writer.text:
            self._settings.note(
                "The token limit was reached while the model thought; raise --max-tokens or give --think off."
            )
        elif finished.reason == "length":
            self._settings.detail("The reply ended at its token limit.")
        if self._settings.verbose:
            usage, timing = finished.usage, finished.timing
            self._settings.note(
                f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), "
                f"{usage.completion_tokens} reply tokens, first after {timing.ttft_s:.2f} s, "
                f"prefill {timing.prefill_tps:.0f} tok/s, decode {timing.decode_tps:.0f} tok/s"
            )
        return 0


def _wants_completion(finished: Finished) -> bool:
    error = finished.error or {}
    details = error.get("details") or {}
    return details.get("field") == "task" and "complete" in details.get("tasks", ())


def _kept_nothing(finished: Finished) -> Finished:
    if finished.cancel is None or not finished.cancel.kept_tokens:
        return finished
    return replace(finished, cancel=replace(finished.cancel, kept_tokens=0))
