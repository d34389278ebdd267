"""OpenAI's Embeddings: texts in, one vector each. Shapes: the OpenAI API reference, "Embeddings"."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.errors import BadRequest
from exocli.server.body import Common, Natural, parse
from exocli.server.embedding import embed, vectors_of
from exocli.server.generate import Api
from exocli.server.streaming import Call, Collected, Reply
from exocli.types import Event, Request

Input = str | list[str] | list[int] | list[list[int]]


class EmbeddingsRequest(Common):
    """`truncate` is ours: texts that are too long are cut, not refused."""

    input: Annotated[Input, Field(union_mode="left_to_right")]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Natural | None = None
    user: str | None = None
    truncate: bool | None = None


def parse_embeddings(raw: bytes) -> Call:
    body = parse(EmbeddingsRequest, raw)
    given = [body.input] if isinstance(body.input, str) else body.input
    if not given:
        raise BadRequest("input: there is no text.", field="input")
    texts = tuple(text for text in given if isinstance(text, str))
    if len(texts) < len(given):
        raise BadRequest(
            "input: token ids are of another model's tokenizer; send the texts themselves "
            "(with LangChain: check_embedding_ctx_length=False).",
            field="input",
        )
    request = Request(task="embed", inputs=texts, dimensions=body.dimensions, truncate=bool(body.truncate))
    return Call(
        request=request,
        model=body.model,
        timeout=body.timeout,
        encoding="base64" if body.encoding_format == "base64" else "float",
    )


class EmbeddingsReply(Reply):
    def on(self, event: Event) -> Iterator[bytes]:
        yield from ()  # the API has no stream

    def whole(self, collected: Collected) -> dict[str, Any]:
        count = collected.finished.usage.prompt_tokens
        rows = [
            {"object": "embedding", "index": index, "embedding": self._encoded(vector)}
            for index, vector in enumerate(vectors_of(self.running, collected))
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": rows, "model": self.model, "usage": usage}

    def _encoded(self, vector: tuple[float, ...]) -> str | tuple[float, ...]:
        """base64: the numbers as little-endian float32."""
        if self.call.encoding == "float":
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


API = Api("openai.embeddings", parse_embeddings, EmbeddingsReply)


async def embeddings(http: HttpRequest) -> Response:
    return await embed(http, API)
