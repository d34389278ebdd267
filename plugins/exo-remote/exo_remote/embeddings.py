"""Embeddings of a server: a Request → the body, its one JSON answer → events. Pure.

Shapes: the OpenAI API reference, "Embeddings"; Ollama's API documentation, /api/embed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exocli import Embedding, Event, Request, UpstreamError, Usage

from exo_remote import chunks
from exo_remote.dialects import EXO, OLLAMA, Dialect


def route(dialect: Dialect) -> str:
    return "/api/embed" if dialect is OLLAMA else "/embeddings"


def body(request: Request, dialect: Dialect, model: str) -> dict[str, Any]:
    """Only exo and Ollama can be told to cut what is too long; the others refuse it, in their own words."""
    data: dict[str, Any] = {"model": model, "input": list(request.inputs)}
    if request.dimensions is not None:
        data["dimensions"] = request.dimensions
    if dialect in (EXO, OLLAMA):
        data["truncate"] = request.truncate
    if dialect is not OLLAMA:
        data["encoding_format"] = "float"
    return data


class EmbeddingReply(chunks.Reply):
    """The one answer, with a vector for each of `count` texts."""

    def __init__(self, request_id: str, url: str, count: int) -> None:
        super().__init__(request_id, url)
        self._count = count

    def on_json(self, text: str, kind: str = "message") -> Iterator[Event]:
        data = self.object_of(text)
        if "embeddings" in data:
            vectors = dict(enumerate(data["embeddings"]))
            self._usage = Usage(prompt_tokens=chunks.count_of(data.get("prompt_eval_count")))
        else:
            vectors = {int(row["index"]): row["embedding"] for row in data["data"]}
            self._usage = chunks.usage_of(data.get("usage") or {})
        if set(vectors) != set(range(self._count)):
            said = f"{self.url} gave {len(vectors)} embeddings for {self._count} texts."
            raise UpstreamError(said, url=self.url)
        self.moved += 1
        self._reason, self._done = "stop", True
        for index, vector in sorted(vectors.items()):
            yield Embedding(id=self.id, index=index, vector=tuple(map(float, vector)))
