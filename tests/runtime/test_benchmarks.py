"""What `exo bench` reports, measured on the small engines: the figures exist and mean what they say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from exocli import (
    CancelToken,
    Event,
    Finished,
    OpenContext,
    Request,
    StepEngine,
    StreamEngine,
    Text,
    Timing,
    Variant,
    from_generator,
)
from exocli.benchmark_variants import compare
from exocli.benchmarks import ROUNDS_A_START, Plan, measure

from tests.runtime.conftest import Make
from tests.support.engines import CAPABILITIES, CountingEngine


def open_yardstick(context: OpenContext) -> StreamEngine:
    """A baseline that says it took a tenth of a second, and notes each request it was given."""
    log = context.cache_dir / "asked"
    log.parent.mkdir(parents=True, exist_ok=True)

    def run(request: Request, cancel: CancelToken) -> Iterator[Event]:
        with log.open("a") as file:
            print(request.id, request.options, file=file)
        yield Finished(id=request.id, reason="stop", timing=Timing(ttft_s=0.1, decode_tps=100.0))

    return from_generator(run, CAPABILITIES)


class Weighing(CountingEngine):
    """Counts its replies."""

    replies = 0

    def step(self) -> Sequence[Event]:
        found: list[Event] = []
        for event in super().step():
            if isinstance(event, Finished):
                self.replies += 1
                found.append(Text(id=event.id, text=json.dumps({"weight": {"replies": self.replies}})))
            found.append(event)
        return found


def open_weighing(context: OpenContext) -> StepEngine:
    return Weighing(context)


async def test_the_report(make: Make, home: Path) -> None:
    session = make()
    here = {"baseline": f"{__name__}:open_yardstick", "figures": f"{__name__}:open_weighing"}
    session = session.like(replace(session.spec, **here))  # type: ignore[arg-type]
    plan = Plan(rounds=ROUNDS_A_START + 1, cancels=2, requests=21, prompt_words=30, reply_tokens=24)
    notes: list[str] = []
    report = await measure(session, plan, notes.append)
    (log,) = home.rglob("asked")
    assert report["overhead"]["rounds"] == plan.rounds == len(log.read_text().splitlines())
    assert report["reply_tokens"] == 24
    assert report["batch"]["streams"] == CAPABILITIES.max_concurrency
    # Both are 0 where no moment was found in which all of them wrote; how fast they are is no test's matter.
    assert report["batch"]["speedup"] > 0 and report["batch"]["decode_tps"] > 0
    cancel = report["cancel"]
    assert 0 < cancel["n"] <= 2 and cancel["p50_ms"] <= cancel["p99_ms"] <= cancel["max_ms"]
    assert sum(cancel["phases"].values()) == cancel["n"]
    memory = report["memory"]
    assert memory["worker_mb"] > 5 and memory["parent_mb"] > 5 and memory["growth_pct"] is not None
    assert report["weight"] == {"replies": plan.rounds}
    assert notes


def variants(options: Any, facts: Mapping[str, Any]) -> Iterable[Variant]:
    assert not options.child and facts["child"] is None
    yield Variant(name="noisy", options={"noise": True})
    yield Variant(name="broken", options={"fail_open": True})
    yield Variant(name="reading", options={"noise": True}, measure="prefill")
    yield Variant(name="leaving", measure="cancel")


async def test_variants_are_compared_with_the_engine_as_it_was_opened(make: Make) -> None:
    session = make()
    session = session.like(replace(session.spec, variants=f"{__name__}:variants"))
    plan = Plan(rounds=2, cancels=4, prompt_words=30)
    async with session:
        await session.load()
        found = (await compare(session, plan, lambda text: None))["variants"]
        assert await compare(make(), plan, lambda text: None) == {}
    noisy = found["noisy"]
    assert noisy["text_equal"] and noisy["rounds"] == 2
    assert noisy["decode_ratio"] > 0 and noisy["decode_tps"] > 0 and noisy["plain_tps"] > 0
    assert "error" in found["broken"]
    reading = found["reading"]
    assert reading["prefill_ratio"] > 0 and reading["prefill_tps"] > 0 and reading["plain_tps"] > 0
    assert 0 < found["leaving"]["n"] <= 4 and found["leaving"]["max_ms"] > 0
