"""What `exo bench` reports, measured on the small engines: the figures exist and mean what they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from exocli import CancelToken, Event, Finished, OpenContext, Request, StreamEngine, Timing, from_generator
from exocli.benchmark_variants import compare
from exocli.benchmarks import ROUNDS_A_START, Plan, measure

from tests.runtime.conftest import Make
from tests.support.engines import CAPABILITIES


def open_yardstick(context: OpenContext) -> StreamEngine:
    """A baseline that says it took a tenth of a second, and notes each request it was given."""
    log = context.cache_dir / "asked"
    log.parent.mkdir(parents=True, exist_ok=True)

    def run(request: Request, cancel: CancelToken) -> Iterator[Event]:
        with log.open("a") as file:
            print(request.id, request.options, file=file)
        yield Finished(id=request.id, reason="stop", timing=Timing(ttft_s=0.1, decode_tps=100.0))

    return from_generator(run, CAPABILITIES)


async def test_the_report(make: Make, home: Path) -> None:
    session = make()
    session = session.like(replace(session.spec, baseline=f"{__name__}:open_yardstick"))
    plan = Plan(rounds=ROUNDS_A_START + 1, cancels=2, requests=21, prompt_words=30, reply_tokens=6)
    notes: list[str] = []
    report = await measure(session, plan, notes.append)
    (log,) = home.rglob("asked")
    assert report["overhead"]["rounds"] == plan.rounds == len(log.read_text().splitlines())
    assert report["reply_tokens"] == 6
    assert report["batch"]["streams"] == CAPABILITIES.max_concurrency
    assert report["batch"]["speedup"] > 2  # the counting engine serves all of them in one step
    cancel = report["cancel"]
    assert 0 < cancel["n"] <= 2 and cancel["p50_ms"] <= cancel["p99_ms"] <= cancel["max_ms"]
    assert sum(cancel["phases"].values()) == cancel["n"]
    memory = report["memory"]
    assert memory["worker_mb"] > 5 and memory["parent_mb"] > 5 and memory["growth_pct"] is not None
    assert notes


async def test_variants_are_compared_with_the_engine_as_it_was_opened(make: Make) -> None:
    session = make()
    variants = {"noisy": {"noise": True}, "broken": {"fail_open": True}}
    session = session.like(replace(session.spec, variants=variants))
    async with session:
        await session.load()
        found = (await compare(session, 2, lambda text: None))["variants"]
        assert await compare(make(), 2, lambda text: None) == {}
    noisy = found["noisy"]
    assert noisy["text_equal"] and noisy["rounds"] == 2
    assert noisy["decode_ratio"] > 0 and noisy["decode_tps"] > 0 and noisy["plain_tps"] > 0
    assert "error" in found["broken"]
