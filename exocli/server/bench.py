"""What serving costs: the same load through HTTP and through a bare Session, in turns, in one run.

Also how soon a short request is served after a client left a long prefill, and what a thousand requests
leave in memory. A peer (another server of the same model) gets the same load, side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from exocli.errors import ExoError, from_dict
from exocli.runtime.session import Session
from exocli.types import Finished, Message, Reasoning, Request, Text

Note = Callable[[str], None]
START_S = 120.0
"""How long a server may take to listen."""
CUT_S = 1.0
"""How far into its prefill the client of the long request leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`rounds` pairs of (bare, HTTP) for each number of clients; lengths in words and tokens."""

    rounds: int = 5
    clients: tuple[int, ...] = (1, 8)
    words: int = 60
    reply_tokens: int = 48
    long_words: int = 1500
    cuts: int = 3
    requests: int = 1000


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens a second over all clients, and the median time to the first token, in seconds."""

    tps: float
    ttft: float


def prompt(words: int, salt: str) -> str:
    """About `words` words, different from the first one on, so that no kept prefix serves."""
    lines = (f"{salt} {i}: the value of item {i} is {i * 37 % 101}." for i in range(words // 9 + 1))
    return " ".join(lines) + " Go on with this list."


# ------------------------------------------------------------------------------------------- the load

One = Callable[[str, int], AsyncIterator[None]]
"""(prompt, tokens) → nothing, once for each token of the reply."""


def through_session(session: Session) -> One:
    async def one(text: str, tokens: int) -> AsyncIterator[None]:
        request = Request(messages=(Message(role="user", content=text),), max_tokens=tokens)
        async for event in session.stream(request):
            if isinstance(event, (Text, Reasoning)):
                yield
            elif isinstance(event, Finished) and event.error is not None:
                raise from_dict(event.error)

    return one


def through_http(client: httpx.AsyncClient, model: str) -> One:
    async def one(text: str, tokens: int) -> AsyncIterator[None]:
        messages = [{"role": "user", "content": text}]
        body = {"model": model, "messages": messages, "max_tokens": tokens, "stream": True, "temperature": 0}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                raise ExoError(f"The server answers {answer.status_code}: {(await answer.aread())[:200]!r}")
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and _has_text(json.loads(line[6:])):
                    yield

    return one


def _has_text(chunk: Mapping[str, Any]) -> bool:
    if "error" in chunk:
        raise ExoError(str(chunk["error"]))
    delta = chunk["choices"][0].get("delta", {}) if chunk.get("choices") else {}
    return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"))


async def run_round(one: One, clients: int, plan: Plan, salt: str) -> Round:
    begin = time.perf_counter()
    firsts: list[float] = []

    async def client(number: int) -> int:
        count = 0
        start = time.perf_counter()
        async for _ in one(prompt(plan.words, f"{salt}-{number}"), plan.reply_tokens):
            if count == 0:
                firsts.append(time.perf_counter() - start)
            count += 1
        return count

    counts = await asyncio.gather(*(client(number) for number in range(clients)))
    seconds = time.perf_counter() - begin
    return Round(sum(counts) / seconds, statistics.median(firsts) if firsts else 0.0)


async def first_after_leaving(base_url: str, model: str, plan: Plan, salt: str) -> float:
    """Seconds from a client's disconnect within a long prefill to the first token of a short request."""
    long = prompt(plan.long_words, f"long {salt}")
    async with client_of(base_url) as leaving, client_of(base_url) as staying:
        one = through_http(leaving, model)(long, 8)
        reading = asyncio.ensure_future(anext(aiter(one)))
        await asyncio.sleep(CUT_S)
        if reading.done():
            raise ExoError("The long prompt was prefilled before its client left; give more long_words.")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await leaving.aclose()
        begin = time.perf_counter()
        async for _ in through_http(staying, model)(f"{salt}: say hello.", 2):
            return time.perf_counter() - begin
    raise ExoError("The short request was answered with no token.")


def client_of(base_url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base_url, timeout=httpx.Timeout(600, connect=10), trust_env=False)


# ------------------------------------------------------------------------------------------ the report


async def measure(
    session: Session,
    serve: Sequence[str],
    plan: Plan,
    note: Note,
    peer: Sequence[str] | None = None,
    peer_model: str = "default_model",
    peer_env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The whole report as plain data.

    `serve` are the flags of an `exo serve` of the same model as `session`. `peer` is the command of
    another server, with `{port}` where its port belongs; `peer_model` what it calls the model.
    """
    report: dict[str, Any] = {}
    with server([sys.executable, "-m", "exocli", "serve", "--port", "{port}", *serve]) as (url, pid):
        async with client_of(url) as http:
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            ours = through_http(http, model)
            bare = through_session(session)
            await run_round(ours, 1, plan, "warm")
            await run_round(bare, 1, plan, "warm")
            report["throughput"] = await _compare(bare, ours, plan, note, ("bare", "http"))
            await session.close()  # nothing else may run while latencies and memory are taken
            report["disconnect_to_next_token_s"] = await _cuts(url, model, plan, note)
            report["memory"] = await _memory(ours, pid, plan, note)
            if peer is not None:
                with server(peer, peer_env) as (peer_url, _):
                    report["peer"] = await _peer(ours, peer_url, peer_model, plan, note)
    return report


async def _compare(a: One, b: One, plan: Plan, note: Note, names: tuple[str, str]) -> dict[str, Any]:
    """Rounds in turns; the ratio is the median over pairs of neighbours."""
    found: dict[str, Any] = {}
    for clients in plan.clients:
        pairs: list[tuple[Round, Round]] = []
        for number in range(plan.rounds):
            note(f"{names[0]} and {names[1]}: {clients} clients, round {number + 1} of {plan.rounds}")
            first = await run_round(a, clients, plan, f"{names[0]} {clients} {number}")
            pairs.append((first, await run_round(b, clients, plan, f"{names[1]} {clients} {number}")))
        found[f"clients_{clients}"] = {
            f"{names[0]}_tps": round(statistics.median(x.tps for x, _ in pairs), 2),
            f"{names[1]}_tps": round(statistics.median(y.tps for _, y in pairs), 2),
            "ratio": round(statistics.median(y.tps / x.tps for x, y in pairs), 3),
            "added_ttft_ms": round(1000 * statistics.median(y.ttft - x.ttft for x, y in pairs), 2),
        }
    return found


async def _cuts(url: str, model: str, plan: Plan, note: Note) -> float:
    times = []
    for number in range(plan.cuts):
        note(f"a client leaves its prefill: {number + 1} of {plan.cuts}")
        times.append(await first_after_leaving(url, model, plan, f"cut {number}"))
    return round(statistics.median(times), 3)


async def _peer(ours: One, url: str, model: str, plan: Plan, note: Note) -> dict[str, Any]:
    async with client_of(url) as http:
        theirs = through_http(http, model)
        await run_round(theirs, 1, plan, "warm")
        found = await _compare(theirs, ours, plan, note, ("peer", "ours"))
        return {"throughput": found, "disconnect_to_next_token_s": await _cuts(url, model, plan, note)}


async def _memory(one: One, pid: int, plan: Plan, note: Note) -> dict[str, Any]:
    """Megabytes of the server and its worker before and after `requests` short requests, half of them
    left early; growth in percent."""

    async def short(number: int) -> None:
        stream = one(f"{number}: a short one.", 4)
        async for _ in stream:
            if number % 2:
                break
        await stream.aclose()  # type: ignore[attr-defined]

    for number in range(20):
        await short(number)
    before = resident(pid)
    for number in range(plan.requests):
        if number % 100 == 0:
            note(f"memory: request {number} of {plan.requests}")
        await short(100 + number)
    after = resident(pid)
    return {
        "requests": plan.requests,
        "before_mb": round(before, 1),
        "after_mb": round(after, 1),
        "growth_pct": round(100 * (after / before - 1), 2),
    }


def resident(pid: int) -> float:
    """Megabytes of a process and its children, by `ps`, which answers in KiB on Linux and macOS alike."""
    done = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,rss="], capture_output=True, text=True, check=True)
    rows = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    family = {pid, *(own for own, parent, _ in rows if parent == pid)}
    return sum(rss for own, _, rss in rows if own in family) / 1024


@contextlib.contextmanager
def server(command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """Start a server; → (its URL, its process id) once it takes connections; ended afterwards.
    Raises ExoError if it does not come up."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [part.replace("{port}", str(port)) for part in command],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise ExoError(f"{command[0]} … does not come up as a server.")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
