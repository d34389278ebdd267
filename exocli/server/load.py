"""The load that a server is measured with: the same requests through a bare Session and through HTTP.

Only sends and takes times; what is compared with what, and the report, are bench.py's.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11

from exocli.errors import ExoError, from_dict
from exocli.runtime.session import Session
from exocli.types import Finished, Message, Reasoning, Request, Sampling, Text

CUT_S = 1.0
"""How far into its prefill the client of the long request leaves."""

One = Callable[[str, int], AsyncGenerator[int, None]]
"""(prompt, tokens) → 0 for each piece of the reply, then how many tokens it had: servers cut pieces as they
like."""
First = Callable[[str, float], object]


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens a second over all clients, and the median time to the first token, in seconds."""

    tps: float
    ttft: float


def prompt(words: int, salt: str) -> str:
    """About `words` words, different from the first one on, so that no kept prefix serves."""
    lines = (f"{salt} {i}: the value of item {i} is {i * 37 % 101}." for i in range(words // 9 + 1))
    return " ".join(lines) + " Go on with this list."


def through_session(session: Session) -> One:
    async def one(text: str, tokens: int) -> AsyncGenerator[int, None]:
        said = (Message(role="user", content=text),)
        request = Request(messages=said, max_tokens=tokens, sampling=Sampling(temperature=0.0))
        async for event in session.stream(request):
            if isinstance(event, (Text, Reasoning)):
                yield 0
            elif isinstance(event, Finished):
                if event.error is not None:
                    raise from_dict(event.error)
                yield event.usage.completion_tokens

    return one


def through_http(url: str, model: str, first: First = lambda name, seconds: None) -> One:
    """Each request on a connection of its own. `first(request id, seconds since it was sent)` is told of
    each reply's first piece."""
    parts = urlsplit(url)

    async def one(text: str, tokens: int) -> AsyncGenerator[int, None]:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        begin = time.perf_counter()
        begun = False
        async with aclosing(
            _post(parts.hostname or "", parts.port or 80, json.dumps(body).encode())
        ) as lines:
            async for name, line in lines:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if _has_text(chunk):
                    if not begun:
                        first(name, time.perf_counter() - begin)
                    begun = True
                    yield 0
                if usage := chunk.get("usage"):
                    yield usage["completion_tokens"]

    return one


async def _post(host: str, port: int, body: bytes) -> AsyncGenerator[tuple[str, bytes], None]:
    """The answer's lines, each with the request's id; leaving early closes the connection. On h11 alone: a
    client library's own time would count as the server's. Raises ExoError for a status of 400 or more."""
    reader, writer = await asyncio.open_connection(host, port)
    http = h11.Connection(h11.CLIENT)
    headers = [("Host", f"{host}:{port}"), ("Content-Type", "application/json"), ("Connection", "close")]
    request = h11.Request(
        method="POST", target="/v1/chat/completions", headers=[*headers, ("Content-Length", str(len(body)))]
    )
    try:
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(http.send(event) or b"")
        name, status, rest = "", 0, b""
        while True:
            match http.next_event():
                case h11.NEED_DATA:
                    http.receive_data(await reader.read(1 << 16))
                case h11.Response(status_code=status, headers=found):
                    name = dict(found).get(b"x-request-id", b"").decode("ascii")
                case h11.Data(data=data) if status < 400:
                    *lines, rest = (rest + bytes(data)).split(b"\n")
                    for line in lines:
                        yield name, line
                case h11.Data(data=data):
                    raise ExoError(f"The server answers {status}: {bytes(data[:200])!r}")
                case _:
                    return
    except h11.RemoteProtocolError as error:
        raise ExoError(f"The server broke off: {error}.") from None
    finally:
        writer.close()


def _has_text(chunk: Mapping[str, Any]) -> bool:
    if "error" in chunk:
        raise ExoError(str(chunk["error"]))
    delta = chunk["choices"][0].get("delta", {}) if chunk.get("choices") else {}
    return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"))


async def run_round(one: One, clients: int, words: int, tokens: int, salt: str) -> Round:
    """So many clients at once, each with a prompt of so many words and a reply of so many tokens."""
    begin = time.perf_counter()
    firsts: list[float] = []

    async def client(number: int) -> int:
        count, begun = 0, False
        start = time.perf_counter()
        async for made in one(prompt(words, f"{salt}-{number}"), tokens):
            if not begun:
                firsts.append(time.perf_counter() - start)
            begun = True
            count += made
        return count

    counts = await asyncio.gather(*(client(number) for number in range(clients)))
    seconds = time.perf_counter() - begin
    return Round(sum(counts) / seconds, statistics.median(firsts) if firsts else 0.0)


async def first_token(url: str, model: str, salt: str) -> float:
    """Seconds from asking a short question to the first token of the answer."""
    times: list[float] = []
    one = through_http(url, model, lambda name, seconds: times.append(seconds))
    async for _ in one(f"{salt}: say hello.", 2):
        pass
    if not times:
        raise ExoError("The short request was answered with no token.")
    return times[0]


async def first_after_leaving(url: str, model: str, words: int, salt: str) -> float:
    """Seconds from a client's disconnect within a prefill of so many words to the first token of a short
    request."""
    one = through_http(url, model)(prompt(words, f"long {salt}"), 8)
    reading = asyncio.ensure_future(anext(one))
    await asyncio.sleep(CUT_S)
    if reading.done():
        raise ExoError("The long prompt was prefilled before its client left; give more long_words.")
    begin = time.perf_counter()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    closed = time.perf_counter() - begin
    return closed + await first_token(url, model, salt)
