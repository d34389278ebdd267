"""What would corrupt a ring without an error is found out: unlike dtypes, other rings, ranks out of step;
and traffic of all kinds on one pair of sockets stays whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.exo_ring import ranks
from tests.exo_ring.conftest import Make
from tests.support.runtime import end, reply, text


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_traps(size: int, tmp_path: Path) -> None:
    answers = ranks.run("peer_traps", size, tmp_path)
    assert [status for status, _, _ in answers] == [0] * size, answers
    for rank, (_, out, _) in enumerate(answers):
        found = {line["trap"]: line for line in map(json.loads, out.splitlines())}
        stranger = f"Rank {rank} is connected to a rank of another ring or with another plan: start again."
        assert found["same"]["found"] == "together"
        assert found["unlike dtypes"]["error"] == stranger
        assert found["two rings"]["error"] == stranger
        assert found["mixed traffic"]["found"] == "whole"
        for way in ("tensor", "pipeline"):
            line = found[f"out of step, {way}"]
            if rank == 1:
                assert line["error"].startswith("The ranks are out of step: rank 1 is at step 4 (")
            else:
                assert line["found"] == 30


@pytest.mark.parametrize("tokens", [20, pytest.param(200, marks=pytest.mark.soak)])
async def test_unlike_blas_on_two_ranks(make: Make, tokens: int) -> None:
    """Logits that differ in the last digits: the tokens are one rank's alone, so nobody waits for ever."""
    unlike = make(opener="open_unlike")
    found = await reply(unlike, "once upon a time", task="complete", max_tokens=tokens)
    assert end(found).reason == "length" and end(found).usage.completion_tokens == tokens
    assert text(found)
