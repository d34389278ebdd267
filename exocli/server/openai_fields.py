"""What OpenAI's two older APIs, Chat Completions and Completions, have in common: the fields of a request,
and what stands around the choices of a reply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from exocli.errors import ExoError
from exocli.server import convert
from exocli.server.body import Body, Common, Int, Number, Seed, Stop
from exocli.server.streaming import DONE, Call, Reply, sse
from exocli.types import Finished, Progress, Request, Sampling, Usage

FINISH = {"cancelled": "length"}
"""Ours → theirs, where they differ."""


class StreamOptions(Body):
    include_usage: bool | None = None


class OpenAIRequest(Common):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Int | None = Field(default=None, ge=1)
    temperature: Number | None = Field(default=None, ge=0)
    top_p: Number | None = Field(default=None, ge=0, le=1)
    top_k: Int | None = Field(default=None, ge=-1)
    min_p: Number | None = Field(default=None, ge=0, le=1)
    seed: Seed | None = None
    stop: Stop = None
    n: Int | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = Field(default=None, gt=0)
    logit_bias: dict[str, Number] | None = None
    response_format: dict[str, Any] | None = None

    def sampling(self) -> Sampling:
        """Raises BadRequest."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=convert.bias(self.logit_bias),
        )

    def call(self, request: Request, **more: Any) -> Call:
        return Call(
            request=request,
            model=self.model,
            stream=bool(self.stream),
            include_usage=bool(self.stream_options and self.stream_options.include_usage),
            return_progress=bool(self.return_progress),
            timeout=self.timeout,
            **more,
        )


# ------------------------------------------------------------------------------------------- replies


def usage(of: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": of.prompt_tokens,
        "completion_tokens": of.completion_tokens,
        "total_tokens": of.prompt_tokens + of.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": of.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": of.reasoning_tokens},
    }


class OpenAIReply(Reply):
    """`prefix` stands before the id; `chunk` and `object` say what a streamed piece and a whole reply are."""

    prefix: ClassVar[str]
    chunk: ClassVar[str]
    object: ClassVar[str]

    def progress(self, event: Progress) -> Iterator[bytes]:
        yield sse({**self._head(self.chunk), "choices": [], "prompt_progress": self.prompt_progress(event)})

    def failed(self, error: ExoError) -> Iterator[bytes]:
        yield from super().failed(error)
        yield DONE

    def piece(self, choice: dict[str, Any], **more: Any) -> bytes:
        """A chunk with this one choice."""
        unasked = {"usage": None} if self.call.include_usage else {}
        return sse({**self._head(self.chunk), "choices": [choice], **unasked, **more})

    def end(self, finished: Finished) -> Iterator[bytes]:
        """What follows the last choice."""
        if self.call.include_usage:
            yield sse({**self._head(self.chunk), "choices": [], "usage": usage(finished.usage)})
        yield DONE

    def body(self, choice: dict[str, Any], finished: Finished) -> dict[str, Any]:
        """The whole reply with this one choice."""
        return {
            **self._head(self.object),
            "choices": [choice],
            "usage": usage(finished.usage),
            **self.receipt(finished),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}{self.running.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }
