"""A tiny model on two ranks: the text of one rank, cancels that all ranks make at one step, resume."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from exocli import CancelToken, Event, Finished, Progress, Sampling, Text
from exocli.runtime.session import Session

from tests.exo_ring.conftest import open_session
from tests.exo_ring.faulty import MISJUDGED
from tests.support.runtime import ROOT, end, reply, text, wait_gone

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = "the quick brown fox jumps over the lazy dog. " * 8
MIDDLE = LONG[:130]
SHORT = "hello there, how are you?"


@pytest.fixture(scope="module")
def rings_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rings(folder: Path, rings_home: Path) -> AsyncIterator[dict[str, Session]]:
    """One rank, a pipeline of two and two ranks tensor parallel, for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXO_HOME", str(rings_home))
        patch.setenv("PYTHONPATH", str(ROOT))
        found = {
            "one": open_session(folder, "mlx", chunk=32),
            "pipeline": open_session(
                folder, opener="open_misjudging", strategy="pipeline", split=(1, 3), chunk=32
            ),
            "tensor": open_session(folder, opener="open_misjudging", strategy="tensor", chunk=32),
        }
        for session in found.values():
            await session.load()
        yield found
        pids = [pid for session in found.values() for pid in session.pids]
        for session in found.values():
            await session.close()
        assert all(wait_gone(pid) for pid in pids)


async def ask(session: Session, prompt: str, **fields: object) -> list[Event]:
    return await reply(session, prompt, task="complete", **fields)


def after_tokens(count: int) -> object:
    seen = 0

    def at(event: Event) -> bool:
        nonlocal seen
        seen += isinstance(event, Text)
        return seen >= count

    return at


def after_prefill_of(count: int) -> object:
    return lambda event: isinstance(event, Progress) and event.processed >= count


@pytest.mark.parametrize("kind", ["pipeline", "tensor"])
async def test_the_text_of_one_rank(rings: dict[str, Session], kind: str) -> None:
    for prompt in (SHORT, LONG):
        alone = await ask(rings["one"], prompt, max_tokens=12)
        shared = await ask(rings[kind], prompt, max_tokens=12)
        assert text(shared) == text(alone) and len(text(alone)) > 5
        assert end(shared).usage.completion_tokens == end(alone).usage.completion_tokens


@pytest.mark.parametrize("kind", ["pipeline", "tensor"])
async def test_a_seed_gives_the_same_draws_on_any_number_of_ranks(
    rings: dict[str, Session], kind: str
) -> None:
    warm = Sampling(temperature=0.9, seed=11, top_p=0.95)
    alone = text(await ask(rings["one"], SHORT, max_tokens=10, sampling=warm))
    assert alone == text(await ask(rings[kind], SHORT, max_tokens=10, sampling=warm))
    other = Sampling(temperature=0.9, seed=12, top_p=0.95)
    assert alone != text(await ask(rings[kind], SHORT, max_tokens=10, sampling=other))


@pytest.mark.parametrize("kind", ["pipeline", "tensor"])
async def test_requests_side_by_side_do_not_change_each_other(rings: dict[str, Session], kind: str) -> None:
    prompts = [SHORT, MIDDLE, "one two three", LONG[200:]]
    warm = Sampling(temperature=0.8, seed=3)
    fields = [{}, {"sampling": warm}, {"stop": ("e",)}, {}]
    solo = [
        text(await ask(rings["one"], p, max_tokens=10, **f)) for p, f in zip(prompts, fields, strict=True)
    ]
    both = await asyncio.gather(
        *(ask(rings[kind], p, max_tokens=10, **f) for p, f in zip(prompts, fields, strict=True))
    )
    assert [text(events) for events in both] == solo


@pytest.mark.parametrize("kind", ["pipeline", "tensor"])
async def test_formats_and_penalties_say_what_they_say_on_one_rank(
    rings: dict[str, Session], kind: str
) -> None:
    """Only the rank that draws knows the grammar, and it ends there by an end token like any other reply."""
    fields: list[dict[str, Any]] = [
        {"format": {"type": "regex", "pattern": "[a-m]{3,9}"}, "sampling": Sampling(temperature=0.9, seed=3)},
        {"sampling": Sampling(repetition_penalty=1.3, frequency_penalty=1.0, logit_bias={70: 3.0})},
        {
            "format": {
                "type": "json_schema",
                "schema": {"type": "array", "maxItems": 4, "items": {"const": 7}},
            }
        },
        {},
    ]
    solo = [await ask(rings["one"], SHORT, max_tokens=20, **f) for f in fields]
    shared = await asyncio.gather(*(ask(rings[kind], SHORT, max_tokens=20, **f) for f in fields))
    assert [text(events) for events in shared] == [text(events) for events in solo]
    assert [end(events).reason for events in shared] == [end(events).reason for events in solo]
    assert re.fullmatch("[a-m]{3,9}", text(shared[0]))
    assert set(json.loads(text(shared[2]))) <= {7} and end(shared[2]).reason == "stop"


@pytest.mark.parametrize("kind", ["pipeline", "tensor"])
async def test_a_draw_that_fails_ends_its_request_on_every_rank(rings: dict[str, Session], kind: str) -> None:
    """On the sampling rank alone something fails; all ranks drop that request at one step and go on."""
    ring = rings[kind]
    solo = text(await ask(rings["one"], SHORT, max_tokens=15))
    pids, restarts = ring.pids, ring.restarts
    survivor = asyncio.create_task(ask(ring, SHORT, max_tokens=15))
    failed = await ask(ring, MIDDLE, max_tokens=50, sampling=Sampling(presence_penalty=MISJUDGED))
    last = end(failed)
    assert last.reason == "error" and last.error is not None
    assert "sampling failed" in last.error["message"]
    assert last.usage.completion_tokens == 2
    assert text(await survivor) == solo
    assert text(await ask(ring, SHORT, max_tokens=15)) == solo
    assert (ring.pids, ring.restarts) == (pids, restarts)


def steps_of(home: Path, request_id: str) -> list[int]:
    """The step at which each rank says that the request left it."""
    found = []
    for rank in range(2):
        log = (home / "logs" / f"ring-rank{rank}.log").read_text()
        found += [int(n) for n in re.findall(rf"left {request_id} at step (\d+)", log)]
    return found


@pytest.mark.parametrize("kind", ["pipeline", "tensor"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_all_ranks_leave_at_one_step_and_a_resend_resumes(
    rings: dict[str, Session], rings_home: Path, kind: str, phase: str
) -> None:
    ring = rings[kind]
    prompt = f"{kind} {phase} " + (LONG if phase == "prefill" else MIDDLE)
    at = after_prefill_of(100) if phase == "prefill" else after_tokens(5)
    events = await ask(ring, prompt, max_tokens=3000, at=at)
    last = end(events)
    assert last.reason == "cancelled" and last.cancel is not None
    receipt = last.cancel
    assert receipt.phase == phase and receipt.ranks == 2 and receipt.confirmed and not receipt.killed
    assert receipt.kept_tokens and receipt.kept_tokens >= 100
    steps = steps_of(rings_home, last.id)
    assert len(steps) == 2 and steps[0] == steps[1]
    again = await ask(ring, prompt, max_tokens=10)
    fresh = await ask(rings["one"], prompt, max_tokens=10)
    assert text(again) == text(fresh)
    assert end(again).usage.cached_tokens >= min(receipt.kept_tokens, end(again).usage.prompt_tokens - 1)


async def test_a_survivor_is_not_touched_by_cancels_beside_it(rings: dict[str, Session]) -> None:
    ring = rings["pipeline"]
    solo = text(await ask(rings["one"], SHORT, max_tokens=60))
    survivor = asyncio.create_task(ask(ring, SHORT, max_tokens=60))
    for number in range(4):
        at = after_prefill_of(33 * number + 1) if number % 2 else after_tokens(3 + number)
        events = await ask(ring, f"{number} {LONG}", max_tokens=500, at=at)
        assert end(events).reason == "cancelled"
    assert text(await survivor) == solo


async def test_many_cancels_at_once(rings: dict[str, Session]) -> None:
    ring = rings["pipeline"]
    token = CancelToken()
    tasks = [
        asyncio.create_task(reply(ring, f"{n} {LONG}", token=token, task="complete", max_tokens=500))
        for n in range(5)
    ]
    await asyncio.sleep(0.2)
    token.cancel()
    for events in await asyncio.gather(*tasks):
        assert isinstance(events[-1], Finished) and events[-1].reason == "cancelled"
    assert text(await ask(ring, SHORT, max_tokens=10)) == text(await ask(rings["one"], SHORT, max_tokens=10))


@pytest.mark.parametrize("cycles", [5, pytest.param(100, marks=pytest.mark.soak)])
async def test_starts_and_cancels_at_random_points(rings: dict[str, Session], cycles: int) -> None:
    """Two requests overlap; one is cancelled somewhere. The other says what it says alone, the ranks go to
    sleep, and a plain request works."""
    ring, chance = rings["pipeline"], random.Random(7)
    solo = text(await ask(rings["one"], SHORT, max_tokens=15))
    for cycle in range(cycles):
        survivor = asyncio.create_task(ask(ring, SHORT, max_tokens=15))
        token = CancelToken()
        prompt = f"{cycle} {LONG}"[: chance.randrange(20, len(LONG))]
        doomed = asyncio.create_task(reply(ring, prompt, token=token, task="complete", max_tokens=400))
        await asyncio.sleep(chance.random() * 0.4)
        token.cancel()
        last = end(await doomed)
        assert last.reason in ("cancelled", "stop", "length"), last
        assert last.cancel is None or last.cancel.ranks in (0, 2)
        assert text(await survivor) == solo
        assert await asleep(ring.pids), f"cycle {cycle}"
    assert text(await ask(ring, SHORT, max_tokens=15)) == solo and ring.restarts == 0


async def test_ranks_sleep_when_there_is_nothing_to_do(rings: dict[str, Session]) -> None:
    ring = rings["pipeline"]
    await ask(ring, SHORT, max_tokens=5)
    assert await asleep(ring.pids, window=0.5)


async def asleep(pids: list[int], window: float = 0.1) -> bool:
    """Whether there comes a stretch in which none of them uses the processor, within two seconds. A rank that
    waits in a collective uses all of it."""
    for _ in range(int(2 / window)):
        before = [cpu_ticks(pid) for pid in pids]
        await asyncio.sleep(window)
        if [cpu_ticks(pid) for pid in pids] == before:
            return True
    return False


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def test_it_says_what_it_is(rings: dict[str, Session]) -> None:
    facts = rings["pipeline"].facts
    assert facts["strategy"] == "pipeline" and facts["split"] == [1, 3] and facts["wire"] == "float32"
    assert facts["why"] == "Pipeline, as asked for."
    assert not rings["pipeline"].capabilities.logprobs and rings["tensor"].capabilities.logprobs
    assert facts["weight_bytes"] < rings["one"].facts["weight_bytes"] / 2


async def test_logprobs_where_tensor_parallel(rings: dict[str, Session]) -> None:
    found = await ask(rings["tensor"], SHORT, max_tokens=3, logprobs=2)
    expected = await ask(rings["one"], SHORT, max_tokens=3, logprobs=2)
    mine = [p for e in found if isinstance(e, Text) for p in e.logprobs or []]
    theirs = [p for e in expected if isinstance(e, Text) for p in e.logprobs or []]
    assert [p["id"] for p in mine] == [p["id"] for p in theirs] and len(mine) == 3
    assert all(abs(a["logprob"] - b["logprob"]) < 1e-4 for a, b in zip(mine, theirs, strict=True))
    refused = end(await ask(rings["pipeline"], SHORT, max_tokens=3, logprobs=2)).error
    assert refused is not None and "logprobs" in refused["message"]
