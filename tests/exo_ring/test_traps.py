"""What would corrupt a ring without an error is found out: unlike dtypes, other rings, ranks out of step;
and traffic of all kinds on one pair of sockets stays whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.exo_ring import ranks


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
