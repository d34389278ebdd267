"""The engine loop without processes: agreement, credit, and the same step on every rank."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from exocli import CancelToken, Finished, OpenContext, StepEngine
from exocli.runtime.loop import StepLoop, StreamLoop
from exocli.runtime.wire import Line

from tests.support.engines import CountingEngine, EchoStream, Options


def context(rank: int = 0, size: int = 1) -> OpenContext:
    return OpenContext(
        backend="test",
        model="m",
        options=Options(),
        rank=rank,
        size=size,
        cache_dir=Path("/nonexistent"),
        log=lambda text: None,
        progress=lambda done, total: None,
        ask=lambda command: None,
        cancel=CancelToken(),
    )


class Chain(CountingEngine):
    """Ranks in threads: the header travels through queues."""

    def __init__(self, rank: int, links: list[queue.SimpleQueue[int]]) -> None:
        super().__init__(context(rank, len(links) + 1))
        self._rank, self._links = rank, links

    def agree(self, received: int) -> int:
        upto = self._links[self._rank - 1].get(timeout=10) if self._rank else received
        if self._rank < len(self._links):
            self._links[self._rank].put(upto)
        return upto


class Driven:
    """A StepLoop in a thread, and what it emitted."""

    def __init__(self, engine: StepEngine, rank: int = 0, size: int = 1) -> None:
        self.lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self.loop = StepLoop(engine, self.lines.put, rank, size)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except ValueError as error:
            assert str(error) == "the word was raise"

    def next(self) -> Line:
        return self.lines.get(timeout=10)

    def end(self, number: int) -> None:
        self.loop.receive({"n": number, "do": "close"})
        self.thread.join(10)
        assert not self.thread.is_alive()


def submit(number: int, name: str, words: str, max_tokens: int = 3) -> dict[str, Any]:
    split = words.split()
    prepared = {
        "id": name,
        "prompt_tokens": len(split),
        "max_tokens": max_tokens,
        "settings": {"words": split},
    }
    return {"n": number, "do": "submit", "prepared": prepared}


def test_a_leader_never_leads_by_more_than_its_credit() -> None:
    engine = CountingEngine(context())
    engine.max_lead = 2
    driven = Driven(engine)
    driven.loop.receive(submit(1, "a", "x " * 50))
    assert [driven.next()["n"] for _ in range(2)] == [1, 2]
    for credit in (1, 2, 5):
        assert driven.lines.empty() and driven.loop.steps <= credit - 1 + 2
        before = driven.loop.steps
        driven.loop.receive({"do": "credit", "step": credit})
        expected = list(range(before + 1, credit + 2 + 1))
        assert [driven.next()["n"] for _ in expected] == expected
    driven.loop.receive({"do": "credit", "step": 1000})
    driven.loop.receive({"n": 2, "do": "cancel", "id": "a"})
    driven.end(3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_leaves_a_request_at_the_same_step(seed: int, size: int) -> None:
    """Lines reach the ranks at different moments; commands still take effect at one step."""
    rng = random.Random(seed)
    links: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(size - 1)]
    ranks = [Driven(Chain(rank, links), rank, size) for rank in range(size)]
    names = [f"r{n}" for n in range(12)]
    commands: list[dict[str, Any]] = []
    for name in names:
        commands.append(submit(len(commands) + 1, name, f"{name} b c forever"))
        if rng.random() < 0.5 and len(commands) > 2:
            commands.append({"n": len(commands) + 1, "do": "tune", "chunk": 64})
    for name in rng.sample(names, len(names)):
        commands.append({"n": len(commands) + 1, "do": "cancel", "id": name})
    commands.append({"n": len(commands) + 1, "do": "cancel", "id": "never heard of"})

    def feed(rank: Driven, pauses: random.Random) -> None:
        for command in commands:
            threading.Event().wait(pauses.random() * 0.004)
            rank.loop.receive(dict(command))

    feeders = [
        threading.Thread(target=feed, args=(rank, random.Random(seed * 10 + n)))
        for n, rank in enumerate(ranks)
    ]
    for feeder in feeders:
        feeder.start()
    left: list[dict[str, int]] = []
    for rank in ranks:
        steps: dict[str, int] = {}
        while len(steps) < len(names):
            line = rank.next()
            assert line["t"] == "step"
            steps.update(dict.fromkeys(line["left"], line["n"]))
        left.append(steps)
    for feeder in feeders:
        feeder.join(10)
    assert all(steps == left[0] for steps in left)
    for rank in ranks:
        rank.loop.receive({"n": len(commands) + 1, "do": "close"})
    for rank in ranks:
        rank.thread.join(10)
        assert not rank.thread.is_alive() and rank.loop.live == 0


def test_only_rank_0_tells_events() -> None:
    driven = Driven(CountingEngine(context(1, 2)), rank=1, size=2)
    driven.loop.receive(submit(1, "a", "x", max_tokens=1))
    lines = [driven.next() for _ in range(3)]
    assert [line["events"] for line in lines] == [[], [], []] and lines[-1]["left"] == ["a"]
    driven.end(2)


def test_alone_a_cancel_flips_the_token_before_the_step_ends() -> None:
    """From the reader's thread, so that an engine with an abort callback can stop inside its step."""

    class Slow(CountingEngine):
        def step(self) -> list[Finished]:  # type: ignore[override]
            (prepared, cancel, _, _) = self.live.pop("a")
            told = threading.Event()
            cancel.on_cancel(told.set)
            assert told.wait(10)
            return [Finished(id=prepared.id, reason="cancelled")]

    driven = Driven(Slow(context()))
    driven.loop.receive(submit(1, "a", "x"))
    driven.loop.receive({"n": 2, "do": "cancel", "id": "a"})
    assert driven.next()["left"] == ["a"]
    driven.end(3)


def test_a_listener_of_the_engines_that_raises_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Listening(CountingEngine):
        def submit(self, prepared: Any, cancel: CancelToken) -> None:
            super().submit(prepared, cancel)
            cancel.on_cancel(lambda: 1 // 0)

    driven = Driven(Listening(context()))
    driven.loop.receive(submit(1, "a", "x forever"))
    driven.next()
    driven.loop.receive({"n": 2, "do": "cancel", "id": "a"})
    while not driven.next()["left"]:
        pass
    driven.end(3)
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_what_the_engine_asks_for_reaches_apply() -> None:
    applied: list[Any] = []

    class Asking(CountingEngine):
        def apply(self, command: Any) -> None:
            applied.append(command)

        def tune(self, chunk: int) -> None:
            applied.append(chunk)

    driven = Driven(Asking(context()))
    driven.loop.receive({"n": 1, "do": "apply", "command": {"evict": 3}})
    driven.loop.receive({"n": 2, "do": "tune", "chunk": 64})
    driven.end(3)
    assert applied == [{"evict": 3}, 64]


def test_on_several_ranks_a_failing_submit_ends_them_unless_it_is_the_requests_fault() -> None:
    class Failing(CountingEngine):
        def submit(self, prepared: Any, cancel: CancelToken) -> None:
            raise ValueError("the word was raise")

    driven = Driven(Failing(context(0, 2)), rank=0, size=2)
    driven.loop.receive(submit(1, "a", "x"))
    assert driven.next()["t"] == "broken"
    driven.thread.join(10)
    driven = Driven(CountingEngine(context(0, 2)), rank=0, size=2)
    driven.loop.receive(submit(1, "a", "refuse"))
    (event,) = driven.next()["events"]
    assert event["reason"] == "error" and event["error"]["code"] == "bad_request"
    driven.end(2)


def test_an_id_may_be_used_again_as_soon_as_its_end_was_told() -> None:
    """The parent may answer a Finished before the loop has come back from telling it."""
    ids: list[str] = []

    def emit(line: Mapping[str, Any]) -> None:
        ids.extend(line.get("left", ()))
        if line.get("left"):
            loop.receive(again if len(ids) < 3 else {"n": 9, "do": "close"})

    again = {
        "n": 1,
        "do": "submit",
        "prepared": {"id": "a", "settings": {"request": {"id": "a", "prompt": "x"}}},
    }
    loop = StreamLoop(EchoStream(), emit)
    loop.receive(again)
    loop.run()
    assert ids == ["a"] * 3 and loop.live == 0
