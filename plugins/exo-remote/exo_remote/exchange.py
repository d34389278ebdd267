"""One request's exchange with the server: sends it, reads it to its end, hands on what comes.

Retries what a server refuses for a field that can be left out; decides by content type which parser reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
from exocli import Event, Request, UpstreamError, new_id

from exo_remote import embeddings, messages, ollama, problems, sse
from exo_remote.chunks import Reply
from exo_remote.client import Client, Refused
from exo_remote.dialects import OLLAMA
from exo_remote.discover import Found
from exo_remote.embeddings import EmbeddingReply
from exo_remote.ollama import OllamaReply

LOADING_EVERY_S = 1.0
AFTER_REASON_S = 5.0
"""What may still come after the reason for the end: usage and the end marker."""
AFTER_DONE_S = 1.0
"""How long the end of a body is waited for behind everyone's back."""


class Exchange:
    """`sent`: the server may know of it. `arrived`: it has begun to answer. `moved_at`: when it last
    showed progress, by time.monotonic(). `upstream_id`: what the server calls it."""

    def __init__(self, client: Client, found: Found, model: str, request: Request, refused: set[str]) -> None:
        """`refused`: fields that this server was seen to refuse; shared by all exchanges, added to here.
        Raises BadRequest for what cannot be sent."""
        self._client = client
        self._refused = refused
        self._found = found
        # Ids that clients chose may meet at one upstream: ours must be unique there, and still be found.
        self.upstream_id = f"{request.id[:100]}-{new_id()[:8]}"
        self._embeds = request.task == "embed"
        if self._embeds:
            root = client.base.home if found.dialect is OLLAMA else found.root
            self._url = root + embeddings.route(found.dialect)
            self._body = embeddings.body(request, found.dialect, model)
            self.reply: Reply = EmbeddingReply(request.id, self._url, len(request.inputs))
        elif found.dialect is OLLAMA:
            self._url = client.base.home + ollama.route(request)
            self._body = ollama.body(request, model)
            self.reply = OllamaReply(request.id, self._url)
        else:
            self._url = found.root + messages.route(request)
            self._body = messages.body(request, found.dialect, model, self.upstream_id)
            self.reply = Reply(request.id, self._url)
        self.sent = self.arrived = False
        self.moved_at = time.monotonic()
        self._moved = 0

    async def events(self) -> AsyncIterator[Event]:
        """Everything, a Finished last. Raises ExoError. Leaving closes the connection."""
        asked_keyring = False
        for field in self._refused:
            self._without(field)
        while True:
            try:
                self.sent = True
                headers = {"X-Request-Id": self.upstream_id, "Accept": self._accept()}
                async with self._client.reply(self._url, self._body, headers) as response:
                    self.arrived = True
                    if self._found.dialect.cancel == "receipt":
                        self.upstream_id = response.headers.get("x-request-id", self.upstream_id)
                    self._note(True)
                    async for event in self._read(response):
                        yield event
                    return
            except Refused as refusal:
                answer = refusal.answer
            if problems.is_loading(answer.status, answer.body):
                for event in self.reply.status("loading", text="the server loads its model"):
                    yield event
                await asyncio.sleep(LOADING_EVERY_S)
            elif answer.status == 401 and not asked_keyring:
                asked_keyring = True
                if not await asyncio.to_thread(self._client.key.look_further):
                    raise self._problem(answer)
            elif unknown := problems.refused_field(answer.status, answer.body, self._removable()):
                self._refused.add(unknown)
                self._without(unknown)
            else:
                raise self._problem(answer)

    def _accept(self) -> str:
        return "application/json" if self._embeds else "text/event-stream"

    def _removable(self) -> list[str]:
        return [name for name in ("stream_options", "max_tokens") if name in self._body]

    def _without(self, field: str) -> None:
        """Leave out what this server does not know; the token limit has a newer name."""
        value = self._body.pop(field, None)
        if field == "max_tokens" and value is not None:
            self._body["max_completion_tokens"] = value

    def _problem(self, answer: Any) -> Exception:
        return problems.of_answer(
            answer.status,
            self._url,
            answer.headers,
            answer.body,
            key_sent=self._client.key.value is not None,
            names=self._found.names,
        )

    # ---------------------------------------------------------------------------------- reading

    async def _read(self, response: httpx.Response) -> AsyncIterator[Event]:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            text = f"{self._url} answers with a web page, not with a reply; check -o url=."
            raise UpstreamError(text, url=self._url, status=502)
        pieces = response.aiter_bytes()
        if kind == "application/json" and (self._embeds or self._found.dialect is not OLLAMA):
            body = b"".join([piece async for piece in pieces])  # a server that does not stream
            for event in self._of(self.reply.on_item(sse.Event(body.decode("utf-8", "replace")))):
                yield event
        else:
            async for event in self._pieces(pieces, lines=kind == "application/x-ndjson"):
                yield event
        for event in self.reply.end():
            yield event
        # A connection that is read to its end can be used again.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AFTER_DONE_S):
                async for _ in pieces:
                    pass

    async def _pieces(self, pieces: AsyncIterator[bytes], *, lines: bool) -> AsyncIterator[Event]:
        """Up to the end marker, the end of the body, or long enough after the reason for the end."""
        stream = sse.JsonLines() if lines or self._found.dialect is OLLAMA else sse.EventStream()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                async for piece in pieces:
                    for item in stream.feed(piece):
                        for event in self._of(self.reply.on_item(item)):
                            yield event
                    if self.reply.done:
                        return
                    if self.reply.ending and limit.when() is None:
                        limit.reschedule(loop.time() + AFTER_REASON_S)
                for item in stream.end():
                    for event in self._of(self.reply.on_item(item)):
                        yield event
        except TimeoutError:
            pass  # it has said why it ends, and keeps the connection open
        except sse.LineTooLong:
            raise UpstreamError(f"{self._url} sends a line without an end.", url=self._url) from None

    def _of(self, events: Iterator[Event]) -> Iterator[Event]:
        yield from events
        self._note(self.reply.moved != self._moved)

    def _note(self, moved: bool) -> None:
        if moved:
            self._moved = self.reply.moved
            self.moved_at = time.monotonic()
