"""How memory is divided between the requests that run and the caches that are kept, and who is let in."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from exocli import CancelToken, ContextOverflow, Finished, Request, Status, Text
from exocli.runtime.session import Session
from exocli.types import Event
from hypothesis import given
from hypothesis import strategies as st

from exo_mlx import plugin
from exo_mlx.kv_budget import SMALLEST, Budget, Footprint, divide
from tests.exo_mlx import kinds
from tests.exo_mlx.kinds import Driver, prompt

GB = 10**9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kinds.write(tmp_path_factory.mktemp("m") / "model", "plain")


def test_what_is_free_goes_to_those_that_run_but_for_a_share_that_is_kept() -> None:
    # SmolLM2-135M in float32: 30 layers, keys and values, 3 heads 64 wide.
    token = 30 * 2 * 3 * 64 * 4
    found = divide(8 * GB, Footprint(token=token), requests=8, kept_tokens=65536, kept_entries=10)
    assert found.kept_tokens == 6 * GB // 4 // token and found.kept_entries == 10
    assert found.running == (6 * GB - found.kept_tokens * token) // token
    small = divide(8 * GB, Footprint(token=token), requests=8, kept_tokens=1000, kept_entries=10)
    assert small.kept_tokens == 1000 and small.running == 6 * GB // token - 1000


def test_where_memory_is_unknown_or_nothing_grows_it_is_no_bound() -> None:
    as_wanted = Budget(running=None, kept_tokens=100, kept_entries=10)
    assert divide(None, Footprint(token=5), requests=8, kept_tokens=100, kept_entries=10) == as_wanted
    recurrent = Footprint(fixed=10**6)
    assert divide(GB, recurrent, requests=8, kept_tokens=100, kept_entries=10) == as_wanted
    few = divide(GB // 50, recurrent, requests=8, kept_tokens=100, kept_entries=10)
    assert few.running is None and 0 < few.kept_entries < 10


@given(
    st.integers(-GB, 100 * GB),
    st.integers(0, 10**6),
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    st.integers(0, 20),
)
def test_never_more_than_there_is(free: int, token: int, fixed: int, tokens: int, entries: int) -> None:
    footprint = Footprint(token=token, fixed=fixed)
    found = divide(free, footprint, requests=8, kept_tokens=tokens, kept_entries=entries)
    assert 0 <= found.kept_tokens <= tokens and 0 <= found.kept_entries <= entries
    kept = found.kept_entries * fixed + (found.kept_tokens * token if found.kept_entries else 0)
    assert kept <= max(free, 0) // 4
    if found.running is not None and found.running > SMALLEST:
        assert kept + 8 * fixed + found.running * token < free


def test_kept_caches_stay_within_their_share(model: Path) -> None:
    driver = Driver(model, cache_tokens=100, cache_entries=3)
    for seed in range(5):
        driver.ask(prompt(30 + seed, seed=seed), 3)
        held = [caches[0].offset for caches in driver.engine._kept._caches.values()]
        assert held and sum(held) <= 100 and len(held) <= 3


def test_a_request_reserves_what_memory_holds_at_the_most(model: Path) -> None:
    engine = Driver(model, kv_budget=50).engine
    assert engine.capabilities.kv_tokens == 50 and engine.describe()["kv_tokens"] == 50

    def ask(length: int, max_tokens: int | None) -> int:
        text = prompt(length)
        return engine.prepare(Request(task="complete", prompt=text, max_tokens=max_tokens)).max_tokens

    assert [ask(20, 5), ask(20, 100), ask(20, None), ask(49, None)] == [5, 30, 30, 1]
    with pytest.raises(ContextOverflow, match="50 tokens; memory here holds 50") as caught:
        ask(50, 1)
    assert caught.value.details == {"prompt_tokens": 50, "context": 50}


def test_with_force_memory_is_no_bound(model: Path) -> None:
    assert Driver(model, force=True).engine.capabilities.kv_tokens is None


async def test_in_a_session_those_that_do_not_fit_wait(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXO_HOME", str(tmp_path / "home"))
    spec = replace(next(iter(plugin.exo_backends())), place="inline")
    async with Session(spec=spec, model="m", path=str(model), options={"kv_budget": 200}) as session:
        await session.load()
        assert session.facts["kv_tokens"] == 200

        async def ask(length: int, max_tokens: int, token: CancelToken | None = None) -> list[Event]:
            asked = Request(task="complete", prompt=prompt(length), max_tokens=max_tokens)
            return [event async for event in session.stream(asked, token)]

        stop = CancelToken()
        running = session.stream(Request(task="complete", prompt=prompt(20), max_tokens=100), stop)
        async for event in running:
            if isinstance(event, Text):
                break
        assert session.kv_reserved == 120
        waiting = asyncio.create_task(ask(30, 60))  # padded: two rows of 120
        while session.queued == 0:
            await asyncio.sleep(0.001)
        stop.cancel()
        assert isinstance([event async for event in running][-1], Finished)
        events = await waiting
        queued = [event for event in events if isinstance(event, Status)]
        assert (queued[0].position, queued[0].text) == (1, "waiting for memory")
        last = events[-1]
        assert isinstance(last, Finished) and last.reason in ("length", "stop")
        refused = (await ask(200, 1))[-1]
        assert isinstance(refused, Finished) and refused.error is not None
        assert refused.error["code"] == "context_length_exceeded" and session.kv_reserved == 0
