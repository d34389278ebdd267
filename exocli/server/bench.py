"""What serving costs: the same load on one engine through HTTP and through its bare Session, in turns.

Then a real `exo serve`: what a thousand requests leave in memory, and how soon a short request is served
after a client left a long prefill. A peer (another server of the same model) gets the same, side by side.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from asyncio import gather
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exocli.benchmark_requests import resident_mb
from exocli.errors import ExoError
from exocli.runtime.session import Session
from exocli.server import listen, run
from exocli.server.access_log import AccessLog
from exocli.server.app import build
from exocli.server.client import Server
from exocli.server.hub import Served
from exocli.server.load import (
    One,
    Round,
    first_after_leaving,
    first_token,
    run_round,
    through_http,
    through_session,
)
from exocli.server.settings import Settings

Note = Callable[[str], None]
START_S = 120.0
"""How long a server may take to listen."""
GIVEN = "given: "
AT_ONCE = 8
"""Requests at a time while memory is watched."""
SETTLED = 100
"""Requests after which memory is taken as settled: what is made once is made, kept caches are full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`rounds` pairs for each number of clients; lengths in words and tokens. `long_words` are about 2,000
    tokens of the default model."""

    rounds: int = 5
    clients: tuple[int, ...] = (1, 8)
    words: int = 60
    reply_tokens: int = 48
    long_words: int = 860
    cuts: int = 5
    settle: int = SETTLED
    requests: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another server: its command, with `{port}` where its port belongs, and what it calls the model. A line
    of its output that begins with "given: " says what it was given beyond its defaults."""

    command: Sequence[str]
    model: str = "default_model"


async def measure(
    session: Session, serve: Sequence[str], plan: Plan, note: Note, peer: Peer | None = None
) -> dict[str, Any]:
    """The whole report as plain data. `serve` are the flags of an `exo serve` of the same model as
    `session`, which is closed on the way: nothing else may run while latencies and memory are taken."""
    report: dict[str, Any] = {"throughput": await _throughput(session, plan, note)}
    command = [sys.executable, "-m", "exocli", "serve", "--port", "{port}", *serve]
    with server(command) as started:
        model = Server(started.url).get("/v1/models")["data"][0]["id"]
        ours = through_http(started.url, model)
        report["memory"] = await _memory(ours, started.pid, plan, note)
        report |= await _leaving(started.url, model, plan, note)
        if peer is not None:
            with server(peer.command) as other:
                found = await _peer(ours, other.url, peer.model, plan, note)
                report["peer"] = {"command": " ".join(peer.command), "given": other.given(), **found}
    return report


async def _throughput(session: Session, plan: Plan, note: Note) -> dict[str, Any]:
    """One engine for both ways, since two of the same differ by more than HTTP costs. Client, server and
    bare session share this process, so what the client costs counts as the server's.

    `http_ttft_ms` is measured within each request: its time to the first token less what the engine's
    side took of it.
    """
    (listener,) = listen.listen("127.0.0.1", 0)
    served = Served(name=session.model, key="", open=lambda concurrency: session, backend=session.spec.name)
    own: list[float] = []
    found: dict[str, Any] = {}
    app = build(Settings(), [served], AccessLog("text", False, lambda text: None))
    requests = app.state.exo.requests

    def first(name: str, seconds: float) -> None:
        one = requests.running.get(name)
        if one is not None and one.first_token is not None:
            own.append(seconds - (one.first_token - one.started))

    async with run.running(app, [listener]):
        bare = through_session(session)
        ours = through_http(listen.url_of(listener), session.model, first)
        for one in (bare, ours):
            await _round(one, 1, plan, "warm")
        for clients in plan.clients:
            own.clear()
            figures = await _compare(bare, ours, clients, plan, note, ("bare", "http"), True)
            figures["http_ttft_ms"] = round(1000 * statistics.median(own), 2) if own else None
            found[f"clients_{clients}"] = figures
    return found


async def _round(one: One, clients: int, plan: Plan, salt: str) -> Round:
    return await run_round(one, clients, plan.words, plan.reply_tokens, salt)


async def _compare(
    a: One, b: One, clients: int, plan: Plan, note: Note, names: tuple[str, str], one_engine: bool = False
) -> dict[str, Any]:
    """Rounds in turns, each time another first; the ratio is the median over pairs of neighbours. Both get
    the same prompts, but for `one_engine`, which would have the second's in its cache."""
    pairs: list[tuple[Round, Round]] = []
    for number in range(plan.rounds):
        note(f"{names[0]} and {names[1]}: {clients} clients, round {number + 1} of {plan.rounds}")
        found: dict[str, Round] = {}
        for name, one in ((names[0], a), (names[1], b))[:: 1 if number % 2 == 0 else -1]:
            salt = f"{name} {clients} {number}" if one_engine else f"{clients} {number}"
            found[name] = await _round(one, clients, plan, salt)
        pairs.append((found[names[0]], found[names[1]]))
    return {
        f"{names[0]}_tps": round(statistics.median(x.tps for x, _ in pairs), 2),
        f"{names[1]}_tps": round(statistics.median(y.tps for _, y in pairs), 2),
        "ratio": round(statistics.median(y.tps / x.tps for x, y in pairs), 3),
        "added_ttft_ms": round(1000 * statistics.median(y.ttft - x.ttft for x, y in pairs), 2),
    }


async def _leaving(url: str, model: str, plan: Plan, note: Note) -> dict[str, Any]:
    """After a client left a long prefill, and for comparison the same short request to an idle server."""
    left, idle = [], []
    for number in range(plan.cuts):
        note(f"a client leaves its prefill: {number + 1} of {plan.cuts}")
        idle.append(await first_token(url, model, f"idle {number}"))
        left.append(await first_after_leaving(url, model, plan.long_words, f"cut {number}"))
    return {
        "disconnect_to_next_token_s": round(statistics.median(left), 3),
        "idle_to_token_s": round(statistics.median(idle), 3),
    }


async def _peer(ours: One, url: str, model: str, plan: Plan, note: Note) -> dict[str, Any]:
    theirs = through_http(url, model)
    for one in (theirs, ours):
        await _round(one, 1, plan, "warm")
    throughput = {
        f"clients_{clients}": await _compare(theirs, ours, clients, plan, note, ("peer", "ours"))
        for clients in plan.clients
    }
    return {"throughput": throughput, **await _leaving(url, model, plan, note)}


async def _memory(one: One, pid: int, plan: Plan, note: Note) -> dict[str, Any]:
    """Megabytes of the server and its worker before and after `requests` short requests, half of them
    left early; growth in percent."""

    async def short(number: int) -> None:
        async with aclosing(one(f"{number}: a short one.", 4)) as stream:
            async for _ in stream:
                if number % 2:
                    break

    async def many(count: int, salt: int) -> None:
        for begin in range(0, count, AT_ONCE):
            if salt and begin % 100 < AT_ONCE:
                note(f"memory: request {begin} of {count}")
            await gather(*(short(salt + number) for number in range(begin, min(begin + AT_ONCE, count))))

    await many(plan.settle, 0)
    before = resident_mb([pid], children=True)
    await many(plan.requests, plan.settle)
    after = resident_mb([pid], children=True)
    return {
        "requests": plan.requests,
        "before_mb": round(before, 1),
        "after_mb": round(after, 1),
        "growth_pct": round(100 * (after / before - 1), 2),
    }


@dataclass(frozen=True, slots=True)
class Started:
    """A server process that listens; `output` holds what it has written so far."""

    url: str
    pid: int
    output: Path

    def given(self) -> str | None:
        """What a peer says that it was given: a line of its own that begins so."""
        lines = self.output.read_text(errors="replace").splitlines()
        return next((line.removeprefix(GIVEN) for line in lines if line.startswith(GIVEN)), None)


@contextlib.contextmanager
def server(command: Sequence[str]) -> Iterator[Started]:
    """Start a server, and end it afterwards. Raises ExoError, with its last line, if it does not come up."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.NamedTemporaryFile(prefix="exo-bench-") as output:
        try:
            process = subprocess.Popen(
                [part.replace("{port}", str(port)) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise ExoError(f"{command[0]} cannot be started: {error.strerror or error}.") from None
        started = Started(f"http://127.0.0.1:{port}", process.pid, Path(output.name))
        try:
            _wait_listening(process, port, started, command[0])
            yield started
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_listening(process: subprocess.Popen[bytes], port: int, started: Started, name: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            last = started.output.read_text(errors="replace").split("\n")[-2:]
            raise ExoError(f"{name} … does not come up as a server: {' '.join(last).strip()}")
        time.sleep(0.1)
