"""What OpenAI's two older APIs have in common: sampling, streaming, and the Call they make of it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from exocli.server import convert
from exocli.server.body import Body, Common, Int, Number, Seed, Stop
from exocli.server.streaming import Call
from exocli.types import Request, Sampling


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
