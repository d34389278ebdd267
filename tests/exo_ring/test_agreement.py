"""The header that goes before each step: what the leader has received is what everyone applies."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from exocli import EngineFailed
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_ring.agreement import Agreement


class Thread:
    """A carrier between ranks that are threads: rank r's numbers go to r + 1."""

    def __init__(
        self, rank: int, pipes: Sequence[queue.SimpleQueue[list[int]]], in_turn: bool = False
    ) -> None:
        self.rank, self.size = rank, len(pipes)
        self.sends_tokens = False
        self.in_turn = in_turn
        self._pipes = pipes

    def pass_numbers(self, numbers: Sequence[int] | None, count: int) -> Callable[[], list[int]]:
        if numbers is not None:
            self._pipes[self.rank].put(list(numbers))

        def wait() -> list[int]:
            found = self._pipes[self.rank].get(timeout=5)
            if self.rank + 1 < self.size:
                self._pipes[self.rank + 1].put(found)
            assert len(found) == count
            return found

        return wait

    def share_tokens(self, ids: Any) -> Any:
        return ids


def ranks(
    size: int,
    work: Callable[[Agreement, int], Any],
    in_turn: bool = False,
    kind: type[Agreement] = Agreement,
) -> list[Any]:
    pipes: list[queue.SimpleQueue[list[int]]] = [queue.SimpleQueue() for _ in range(size)]
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = work(kind(Thread(rank, pipes, in_turn)), rank)
        except EngineFailed as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return found


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(0, 5), max_size=12))
def test_everyone_applies_what_the_leader_has_received(size: int, arrivals: list[int]) -> None:
    def work(agreement: Agreement, rank: int) -> list[int]:
        received, applied = 0, []
        for number, count in enumerate(arrivals):
            received += count
            # The others may have read less of the log, or more: it does not matter.
            applied.append(agreement.agree(received if rank == 0 else received * rank % 7))
            agreement.record([(number, count)])
        return applied

    found = ranks(size, work)
    assert all(each == found[0] for each in found)
    assert found[0] == [sum(arrivals[: n + 1]) for n in range(len(arrivals))]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12))
def test_ahead_everyone_applies_the_same_at_most_one_step_later(
    size: int, steps: list[tuple[int, bool]]
) -> None:
    def work(agreement: Agreement, rank: int) -> list[int]:
        received, applied = 0, []
        for number, (count, ahead) in enumerate(steps):
            received += count
            applied.append(agreement.agree(received if rank == 0 else 0, ahead=ahead))
            agreement.record([(number, count)])
        return applied

    found = ranks(size, work, in_turn=True)
    assert all(each == found[0] for each in found)
    arrived = [sum(count for count, _ in steps[: n + 1]) for n in range(len(steps))]
    for number, upto in enumerate(found[0]):
        early = number > 0 and steps[number - 1][1]
        assert upto == arrived[number - 1 if early else number]


def test_the_leader_does_not_wait() -> None:
    pipes: list[queue.SimpleQueue[list[int]]] = [queue.SimpleQueue() for _ in range(3)]
    leader = Agreement(Thread(0, pipes))
    assert [leader.agree(n) for n in range(5)] == list(range(5))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("what", ["another token", "one row more", "a step more"])
def test_what_is_not_the_same_is_found_at_the_next_step(what: str, ahead: bool) -> None:
    """Or at the one after it, where that one's header was sent before."""

    def work(agreement: Agreement, rank: int) -> Any:
        agreement.agree(1, ahead=ahead)
        agreement.record([(0, 17), (1, 18)])
        agreement.agree(1, ahead=ahead)
        rows = [(0, 19), (1, 20)]
        if rank == 1 and what == "another token":
            rows[1] = (1, 21)
        if rank == 1 and what == "one row more":
            rows.append((2, 8, 9))  # type: ignore[arg-type]
        if rank == 1 and what == "a step more":
            agreement.step += 1
        agreement.record(rows)
        if ahead:
            agreement.agree(2)
            agreement.record([(0, 23)])
        return agreement.agree(2)

    first, second = ranks(2, work, in_turn=ahead)
    assert first == 2
    assert isinstance(second, EngineFailed) and second.details["rank"] == 1
    assert second.message.startswith("The ranks are out of step: rank 1 is at step ")
