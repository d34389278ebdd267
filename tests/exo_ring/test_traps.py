"""What would corrupt a ring without an error is found out: unlike dtypes, other rings, ranks out of step;
and traffic of all kinds on one pair of sockets stays whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.exo_ring import ranks
from tests.exo_ring.conftest import Make
from tests.support.runtime import end, reply, text


def spring(trap: str, size: int, folder: Path) -> list[dict[str, Any]]:
    answers = ranks.run("peer_traps", size, folder, trap)
    assert [status for status, _, _ in answers] == [0] * size, answers
    return [json.loads(out) for _, out, _ in answers]


@pytest.mark.parametrize("trap", ["unlike-dtypes", "two-rings"])
def test_ranks_that_do_not_belong_together(trap: str, tmp_path: Path) -> None:
    for rank, answer in enumerate(spring(trap, 2, tmp_path)):
        assert answer["error"] == (
            f"Rank {rank} is connected to a rank of another ring or with another plan: start again."
        )


@pytest.mark.parametrize("trap", ["out-of-step-pipeline", "out-of-step-tensor"])
def test_ranks_out_of_step(trap: str, tmp_path: Path) -> None:
    first, second = spring(trap, 2, tmp_path)
    assert first == {"found": 30}
    assert second["error"].startswith("The ranks are out of step: rank 1 is at step 4 (")


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_all_kinds_of_traffic_on_one_pair_of_sockets(size: int, tmp_path: Path) -> None:
    assert spring("same", size, tmp_path) == [{"found": "together"}] * size
    assert spring("mixed-traffic", size, tmp_path) == [{"found": "whole"}] * size


async def test_unlike_blas_on_two_ranks(make: Make) -> None:
    """Logits that differ in the last digits: the tokens are one rank's alone, so nobody waits for ever."""
    unlike = make(opener="open_unlike")
    found = await reply(unlike, "once upon a time", task="complete", max_tokens=200)
    assert end(found).reason == "length" and end(found).usage.completion_tokens == 200
    assert text(found)
