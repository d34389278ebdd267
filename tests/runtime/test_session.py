"""The door to an engine: both protocols, both places, the queue, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from exocli import BadRequest, CancelToken, Finished, Progress, Request, Sampling, Started, Status, Text
from exocli.errors import Overloaded, Unavailable, Unsupported
from exocli.runtime.session import Session
from exocli.types import new_id

from tests.runtime.conftest import Make
from tests.support.engines import spec
from tests.support.runtime import alive, end, is_progress, is_text, reply, text

WAYS = [
    ("worker", "open_counting", "step"),
    ("inline", "open_counting", "step"),
    ("worker", "open_echo", "stream"),
    ("inline", "open_echo", "stream"),
    ("inline", "open_generator", "stream"),
]


@pytest.mark.parametrize(("place", "opener", "protocol"), WAYS)
async def test_every_protocol_in_every_place_answers_cancels_and_answers_again(
    make: Make, place: str, opener: str, protocol: str
) -> None:
    session = make(place, opener, protocol)
    first = await reply(session, "a b c", max_tokens=3)
    assert text(first) == "a b c "
    assert isinstance(first[0], Started) and first[0].backend == session.spec.name
    assert end(first).reason in ("stop", "length") and end(first).cancel is None
    stopped = end(await reply(session, "x forever", at=is_text))
    assert stopped.reason == "cancelled" and stopped.cancel is not None
    assert stopped.cancel.phase == "decode" and stopped.cancel.latency_ms > 0 and not stopped.cancel.killed
    assert text(await reply(session, "d e", max_tokens=2)) == "d e "
    assert session.restarts == 0


async def test_a_request_tells_loading_then_progress_then_text(make: Make) -> None:
    events = await reply(make(), "a b", max_tokens=1)
    loading = [e for e in events if isinstance(e, Status)]
    assert (loading[0].phase, loading[0].done, loading[0].rank) == ("loading", None, None)
    assert {(e.phase, e.total, e.rank) for e in loading[1:]} == {("loading", 3, 0)}
    done = [e.done for e in loading[1:]]  # throttled: not every one, but the first and the last
    assert (done[0], done[-1]) == (1, 3) and done == sorted(set(done))
    kinds = [type(e) for e in events if not isinstance(e, Status)]
    assert kinds == [Started, Progress, Progress, Text, Finished]
    timing = end(events).timing
    assert 0 < timing.ttft_s <= timing.total_s and timing.prefill_tps > 0


async def test_the_callers_token_is_not_cancelled_by_a_reply_that_ended_by_itself(make: Make) -> None:
    token = CancelToken()
    await reply(make("inline"), "a", token=token, max_tokens=1)
    assert not token.cancelled


async def test_two_loads_and_two_requests_at_once_share_one_worker(make: Make) -> None:
    session = make()
    seen: list[int] = []
    load = session.load(lambda rank, done, total: seen.append(done))
    _, one, two = await asyncio.gather(load, reply(session, "a b"), reply(session, "c d"))
    assert text(one).startswith("a b ") and text(two).startswith("c d ")
    assert len(session.pids) == 1 and session.restarts == 0
    assert (seen[0], seen[-1]) == (1, 3)


async def test_two_sessions_at_once_do_not_know_of_each_other(make: Make) -> None:
    one, two = make(), make()
    a, b = await asyncio.gather(reply(one, "a", max_tokens=2), reply(two, "b", max_tokens=2))
    assert (text(a), text(b)) == ("a a ", "b b ")
    assert set(one.pids).isdisjoint(two.pids)


async def test_what_a_request_asks_beyond_the_capabilities_is_refused_by_name(make: Make) -> None:
    session = make("inline")
    for fields, name in (
        ({"logprobs": 1}, "logprobs"),
        ({"format": {"type": "json_object"}}, "format"),
        ({"sampling": Sampling(presence_penalty=1.0)}, "presence_penalty"),
        ({"task": "embed"}, "task"),
    ):
        last = end(await reply(session, "a", **fields))
        assert last.error is not None and last.error["code"] == "unsupported"
        assert last.error["details"]["field"] == name
    with pytest.raises(Unsupported):
        await session.prepare(Request(prompt="a", logprobs=1))


async def test_a_bad_request_hurts_nobody_else(make: Make) -> None:
    session = make("inline")
    other = asyncio.create_task(reply(session, "x y z " * 10, max_tokens=20))
    for prompt, code in (
        ("", "bad_request"),
        ("a refuse", "bad_request"),
        ("prepare-raise", "engine_failed"),
    ):
        last = end(await reply(session, prompt))
        assert last.reason == "error" and last.error is not None and last.error["code"] == code
    assert end(await other).reason == "length"
    assert session.restarts == 0
    with pytest.raises(BadRequest, match="nothing to count"):
        await session.prepare(Request(prompt=""))


async def test_what_prepare_found_is_used_once_and_can_be_forgotten(make: Make) -> None:
    session = make("inline")
    request = Request(prompt="a b", max_tokens=1)
    assert (await session.prepare(request)).prompt_tokens == 2
    assert [type(e) for e in [e async for e in session.stream(request)]][-2:] == [Text, Finished]
    await session.prepare(request)
    session.forget(request.id)
    assert not session._prepared


async def test_what_prepare_found_does_not_outlive_its_worker(make: Make) -> None:
    session = make()
    request = Request(prompt="a b", max_tokens=1)
    await session.prepare(request)
    old = session.pids
    await session.kill()
    events = [e async for e in session.stream(request)]
    assert end(events).reason == "length" and text(events) == "a "
    assert session.pids != old and session.restarts == 1


async def test_an_id_is_in_flight_once(make: Make) -> None:
    session = make("inline")
    name = new_id()
    token = CancelToken()
    running = session.stream(Request(prompt="x forever", id=name), token)
    await anext(running)
    with pytest.raises(BadRequest, match="in flight already"):
        await anext(session.stream(Request(prompt="b", id=name)))
    token.cancel()
    assert end([e async for e in running]).reason == "cancelled"
    assert text(await reply(session, "b", id=name, max_tokens=1)) == "b "


# ------------------------------------------------------------------------------------------ the queue


async def test_the_limit_holds_and_those_who_wait_learn_their_place(make: Make) -> None:
    session = make("inline", concurrency=1)
    first = CancelToken()
    started = asyncio.Event()

    async def run() -> Finished:
        async for event in session.stream(Request(prompt="x forever"), first):
            if isinstance(event, Progress):
                started.set()
        return end([event])

    running = asyncio.create_task(run())
    await started.wait()
    waits = [asyncio.create_task(reply(session, name, max_tokens=1)) for name in ("a", "b", "c")]
    while session.queued < 3:
        await asyncio.sleep(0)
    first.cancel()
    results = await asyncio.gather(*waits)
    positions = [[e.position for e in r if isinstance(e, Status) and e.phase == "queued"] for r in results]
    assert [p[0] for p in positions] == [1, 2, 3]
    assert positions[2] == sorted(positions[2], reverse=True) and positions[2][-1] == 1
    assert [text(r) for r in results] == ["a ", "b ", "c "]
    assert (await running).reason == "cancelled"


async def test_the_engines_own_limit_holds(make: Make) -> None:
    session = make("inline")  # 4 at once
    tokens = [CancelToken() for _ in range(6)]
    tasks = [asyncio.create_task(reply(session, "x forever", token=t)) for t in tokens]
    while session.queued < 2 or sum(f.phase == "decode" for f in session.flights.values()) < 4:
        await asyncio.sleep(0.001)
    assert session._turns.running == 4
    for token in tokens:
        token.cancel()
    ends = [end(await task) for task in tasks]
    phases = sorted(e.cancel.phase for e in ends if e.cancel is not None)
    assert phases == ["decode"] * 4 + ["queued"] * 2
    assert {e.cancel.ranks for e in ends if e.cancel and e.cancel.phase == "queued"} == {0}
    assert session._turns.running == 0 and session.queued == 0


@pytest.mark.parametrize("warm", [False, True])
async def test_more_than_the_queue_holds_is_refused_at_once(make: Make, warm: bool) -> None:
    """Also while loading, and for six that come in the same moment (B57)."""
    session = make("inline", concurrency=1, max_queue=1)
    if warm:
        await session.load()

    async def one(name: str) -> str:
        try:
            return text(await reply(session, name, max_tokens=1))
        except Overloaded as error:
            assert error.details["retry_after"] == 1 and error.http_status == 429
            return "refused"

    assert sorted(await asyncio.gather(*(one("a") for _ in range(6)))) == ["a ", "a "] + ["refused"] * 4
    assert await one("b") == "b "


async def test_leaving_the_generator_early_frees_the_slot(make: Make) -> None:
    session = make("inline", concurrency=1)
    stream = session.stream(Request(prompt="x forever"))
    async for event in stream:
        if is_text(event):
            break
    await stream.aclose()  # type: ignore[attr-defined]
    assert text(await reply(session, "a", max_tokens=1)) == "a "
    assert not session.flights


async def test_leaving_while_queued_frees_the_place(make: Make) -> None:
    session = make("inline", concurrency=1)
    holder = CancelToken()
    running = asyncio.create_task(reply(session, "x forever", token=holder))
    while not session._turns.running:
        await asyncio.sleep(0.001)
    waiting = session.stream(Request(prompt="never"))
    async for event in waiting:
        if isinstance(event, Status) and event.phase == "queued":
            break
    await waiting.aclose()  # type: ignore[attr-defined]
    while session.queued:
        await asyncio.sleep(0)
    holder.cancel()
    await running
    assert text(await reply(session, "a", max_tokens=1)) == "a "


# ------------------------------------------------------------------------------------------- the end


async def test_close_with_live_requests_ends_them_and_leaves_no_process(make: Make) -> None:
    session = make(concurrency=2)
    tasks = [asyncio.create_task(reply(session, "x forever")) for _ in range(3)]
    while session.queued < 1 or not all(f.phase != "loading" for f in session.flights.values()):
        await asyncio.sleep(0.001)
    pids = session.pids
    await session.close()
    assert [end(await t).reason for t in tasks] == ["cancelled"] * 3
    assert not any(alive(pid) for pid in pids)


async def test_close_while_loading_leaves_no_process(make: Make) -> None:
    session = make(hang_open=True)
    task = asyncio.create_task(reply(session, "a"))
    while not any(f.phase == "loading" for f in session.flights.values()):
        await asyncio.sleep(0.001)
    await session.close()
    last = end(await task)
    assert last.reason == "cancelled" and last.cancel is not None and last.cancel.phase == "loading"


async def test_nothing_starts_after_close(make: Make) -> None:
    session = make()
    await session.close()
    last = end(await reply(session, "a"))
    assert last.error is not None and last.error["code"] == "unavailable"
    with pytest.raises(Unavailable, match="closed"):
        await session.load()


async def test_a_session_is_a_context(home: Path) -> None:
    async with Session(spec=spec("step", "inline"), model="m", path="m") as session:
        assert text(await reply(session, "a", max_tokens=1)) == "a "
        assert session.facts == {"child": None} and session.loaded
    assert not session.loaded and session.facts == {}


async def test_long_lines_go_both_ways(make: Make) -> None:
    """Far over asyncio's 64 KiB a line."""
    word = "w" * 300_000
    events = await reply(make(), f"{word} ü", max_tokens=2)
    assert text(events) == f"{word} ü "
    assert sum(map(is_progress, events)) == 2
