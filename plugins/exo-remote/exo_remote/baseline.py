"""The yardstick for `exo bench`: the same request over the standard library's HTTP client, read and put
aside; what came is looked at after the clock has stopped.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from exocli import (
    CancelToken,
    Event,
    Finished,
    Message,
    OpenContext,
    Request,
    StreamEngine,
    Timing,
    UpstreamError,
    Usage,
    from_generator,
)

from exo_remote import chunks, messages, sse, urls
from exo_remote.engine import choose_model, look
from exo_remote.keys import Key


def open_bare(context: OpenContext) -> StreamEngine:
    """For OpenAI's routes, which Ollama has too. Raises what the backend itself raises."""
    base = urls.parse(context.options.url)
    key = Key(base, context.options.api_key)
    found = asyncio.run(look(base, context.options, key, context.cancel))
    model = choose_model(found, context.model, base)
    place = urlsplit(found.root)
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/json"}
    if key.value:
        headers["Authorization"] = f"Bearer {key.value}"

    def run(request: Request, cancel: CancelToken) -> Iterator[Event]:
        salted = (Message(role="system", content=request.id), *request.messages)  # nothing kept may serve
        data = messages.body(replace(request, messages=salted), found.dialect, model, request.id)
        connection = kind(place.netloc)
        pieces: list[tuple[float, bytes]] = []
        start = time.perf_counter()
        try:
            connection.request("POST", place.path + messages.route(request), json.dumps(data), headers)
            response = connection.getresponse()
            while piece := response.read1(1 << 16):
                pieces.append((time.perf_counter(), piece))
        finally:
            connection.close()
        if response.status != 200:
            text = f"{found.root} answered {response.status} to the bare request."
            raise UpstreamError(text, status=response.status, url=found.root)
        yield _measured(request.id, start, pieces)

    return from_generator(run, found.dialect.capabilities)


def _measured(request_id: str, start: float, pieces: list[tuple[float, bytes]]) -> Finished:
    stream, usage, count = sse.EventStream(), Usage(), 0
    first, last = start, start
    for at, piece in pieces:
        for item in stream.feed(piece):
            last = at
            if isinstance(item, sse.Comment) or item.data == "[DONE]":
                continue
            data: dict[str, Any] = json.loads(item.data)
            usage = chunks.usage_of(data["usage"]) if data.get("usage") else usage
            if any(choice.get("delta", {}).get("content") for choice in data.get("choices") or ()):
                first = at if count == 0 else first
                count += 1
    count = usage.completion_tokens or count
    decode = (count - 1) / (last - first) if last > first else 0.0
    timing = Timing(ttft_s=first - start, decode_tps=decode, total_s=last - start)
    return Finished(id=request_id, reason="stop", usage=usage, timing=timing)
