"""Ollama's /api/embed, and the older /api/embeddings of one text.

Shapes: Ollama's API documentation (docs/api.md of its repository). Texts that are too long are cut unless
`truncate` is false; a call without a text loads the model, and with keep_alive 0 unloads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.server.body import Common, Natural, Number, parse
from exocli.server.embedding import embed, vectors_of
from exocli.server.generate import Api, json_response
from exocli.server.ollama import seconds
from exocli.server.ollama_models import load_or_unload_now
from exocli.server.state import State
from exocli.server.streaming import Call, Collected, Reply
from exocli.types import Event, Request


class _Either(Common):
    """`options` are those of Ollama's engine; none of them says how a vector is made."""

    model: str | None = None
    keep_alive: Number | str | None = None
    options: dict[str, Any] | None = None


class EmbedRequest(_Either):
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: Natural | None = None


class EmbeddingsRequest(_Either):
    prompt: str | None = None


def parse_embed(raw: bytes) -> Call:
    body = parse(EmbedRequest, raw)
    texts = (body.input,) if isinstance(body.input, str) else tuple(body.input or ())
    texts = () if texts == ("",) else texts  # one empty text is none; among others it is one of them
    request = Request(
        task="embed", inputs=texts, truncate=body.truncate is not False, dimensions=body.dimensions
    )
    return _call(body, request)


def parse_embeddings(raw: bytes) -> Call:
    body = parse(EmbeddingsRequest, raw)
    texts = (body.prompt,) if body.prompt else ()
    return _call(body, Request(task="embed", inputs=texts, truncate=True))


def _call(body: _Either, request: Request) -> Call:
    return Call(
        request=request,
        model=body.model,
        timeout=body.timeout,
        keep_alive=seconds(body.keep_alive),
        empty=not request.inputs,
    )


class _EmbedReply(Reply):
    api = "ollama"

    def on(self, event: Event) -> Iterator[bytes]:
        yield from ()  # these routes have no stream

    def whole(self, collected: Collected) -> dict[str, Any]:
        """Durations are in nanoseconds."""
        vectors = vectors_of(self.running, collected)
        finished = collected.finished
        return {
            "model": self.model,
            "embeddings": vectors,
            "total_duration": round(finished.timing.total_s * 1e9),
            "load_duration": round(self.running.load_s * 1e9),
            "prompt_eval_count": finished.usage.prompt_tokens,
        }


class _EmbeddingsReply(_EmbedReply):
    def whole(self, collected: Collected) -> dict[str, Any]:
        (vector,) = vectors_of(self.running, collected)
        return {"embedding": vector}


async def _without_text(http: HttpRequest, state: State, call: Call) -> Response:
    model = await load_or_unload_now(http, state, call)
    old = http.url.path == "/api/embeddings"
    return json_response({"embedding": []} if old else {"model": call.model or model.name, "embeddings": []})


EMBED = Api("ollama.embed", parse_embed, _EmbedReply, _without_text)
EMBEDDINGS = Api("ollama.embeddings", parse_embeddings, _EmbeddingsReply, _without_text)


async def embed_route(http: HttpRequest) -> Response:
    return await embed(http, EMBED)


async def embeddings_route(http: HttpRequest) -> Response:
    return await embed(http, EMBEDDINGS)
