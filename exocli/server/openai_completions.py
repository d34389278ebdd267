"""OpenAI's older Completions: a text to go on from. Shapes: the OpenAI API reference, "Completions"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field

from exocli.errors import BadRequest
from exocli.server import convert
from exocli.server.body import Int, parse
from exocli.server.generate import Api
from exocli.server.openai_fields import FINISH, OpenAIReply, OpenAIRequest
from exocli.server.streaming import Call, Collected
from exocli.types import Event, Finished, Reasoning, Request, Text

MOST_LOGPROBS = 5


class CompletionRequest(OpenAIRequest):
    prompt: str | list[Any]
    best_of: Int | None = None
    logprobs: Int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    echo: bool | None = None
    suffix: str | None = None


def parse_completion(raw: bytes) -> Call:
    """Raises BadRequest naming the field."""
    body = parse(CompletionRequest, raw)
    convert.only_one(body.n)
    convert.only_one(body.best_of, "best_of")
    convert.refuse("suffix", body.suffix)
    if body.echo and body.logprobs is not None:
        raise BadRequest("echo: the prompt's own logprobs are not offered here.", field="echo")
    prompt = body.prompt
    if isinstance(prompt, list):
        if len(prompt) != 1 or not isinstance(prompt[0], str):
            raise BadRequest("prompt: give one text a request; token ids are not taken.", field="prompt")
        prompt = prompt[0]
    if not prompt:
        raise BadRequest("prompt: the prompt is empty.", field="prompt")
    request = Request(
        task="complete",
        prompt=prompt,
        sampling=body.sampling(),
        max_tokens=body.max_tokens,
        stop=convert.stops(body.stop),
        format=convert.format_of(body.response_format),
        logprobs=body.logprobs,
    )
    return body.call(request, echo=bool(body.echo))


class CompletionReply(OpenAIReply):
    prefix = "cmpl-"
    chunk = object = "text_completion"
    _offset = 0
    """Where in the reply the next token begins, in characters."""
    _begun = False

    def on(self, event: Event) -> Iterator[bytes]:
        match event:
            case Text(text=text, logprobs=logprobs):
                yield self._chunk(
                    self._echo() + text, logprobs=self._logprobs(logprobs) if logprobs else None
                )
            case Reasoning(text=text):  # this API has no other place for it
                yield self._chunk(self._echo() + text)
            case Finished(reason=reason):
                yield self._chunk(self._echo(), finish=FINISH.get(reason, reason), **self.receipt(event))
                yield from self.end(event)

    def _echo(self) -> str:
        """The prompt, before the first piece, if it was asked for."""
        first, self._begun = not self._begun, True
        return self.call.request.prompt or "" if first and self.call.echo else ""

    def _chunk(self, text: str, finish: str | None = None, logprobs: Any = None, **more: Any) -> bytes:
        choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}
        return self.piece(choice, **more)

    def _logprobs(self, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry["token"])
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [max(entry["logprob"], -9999.0) for entry in entries],
            "top_logprobs": [{t: max(v, -9999.0) for t, _, v in entry.get("top", ())} for entry in entries],
            "text_offset": offsets,
        }

    def whole(self, collected: Collected) -> dict[str, Any]:
        finished = collected.finished
        said = [event.text for event in collected.events if isinstance(event, (Text, Reasoning))]
        text = self._echo() + "".join(said)
        logprobs = self._logprobs(collected.logprobs) if collected.logprobs is not None else None
        choice = {
            "index": 0,
            "text": text,
            "finish_reason": FINISH.get(finished.reason, finished.reason),
            "logprobs": logprobs,
        }
        return self.body(choice, finished)


API = Api("openai.completions", parse_completion, CompletionReply)
