"""What `exo bench -b ring` measures: agreement in every other stretch of a reply, one rank, other splits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exo_ring.figures import STRETCH, Alternating
from exo_ring.options import Options
from exo_ring.variants import splits, variants
from tests.exo_ring.test_agreement import Thread, ranks


def test_every_other_stretch_agrees_and_commands_wait_for_it() -> None:
    def work(agreement: Alternating, rank: int) -> list[int]:
        agreement.agree(1)
        agreement.record([(7, 40, 40)])  # the end of the prompt
        applied = []
        for step in range(8 * STRETCH):
            applied.append(agreement.agree(100 + step if rank == 0 else 0))
            agreement.record([(7, step)])
        assert len(agreement.figures()) == 5
        assert agreement.figures()["pairs"] == 3, "the last stretch is not over"
        agreement.rest()
        applied.append(agreement.agree(500 if rank == 0 else 0))
        return applied

    first, second = ranks(2, work, kind=Alternating)  # type: ignore[arg-type]
    assert first == second
    own = [step for step, upto in enumerate(first[:-1]) if upto == 100 + step]
    wanted = [s for s in range(8 * STRETCH) if s // STRETCH % 4 in (0, 3)]
    assert own == wanted
    assert first[2 * STRETCH] == 100 + STRETCH - 1, "what came meanwhile waits"
    assert first[-1] == 500, "whatever comes after a reply is applied at once"


def test_nothing_is_said_of_replies_too_short_to_tell() -> None:
    agreement = Alternating(Thread(0, []))
    agreement.record([(1, 5)])
    assert agreement.figures() == {}


@pytest.mark.parametrize(
    ("layers", "size", "found"),
    [
        (30, 2, [(15, 15), (5, 25), (25, 5)]),
        (30, 3, [(15, 8, 7), (5, 13, 12), (25, 3, 2)]),
        (6, 2, [(3, 3), (1, 5), (5, 1)]),
        (2, 2, [(1, 1)]),
    ],
)
def test_splits(layers: int, size: int, found: list[tuple[int, ...]]) -> None:
    assert splits(layers, size) == found


def test_variants_of_a_pipeline_and_of_tensor_parallelism() -> None:
    options = Options(ranks=2, blas_threads=3, chunk=64, split=(4, 2))
    facts = {"ranks": 2, "split": [4, 2], "strategy": "pipeline"}
    one, *others = variants(options, facts)
    assert (one.backend, one.measure) == ("mlx", "prefill")
    assert one.options["blas_threads"] == 3 and one.options["chunk"] == 64 and "split" not in one.options
    assert [(v.options["split"], v.measure) for v in others] == [(s, "cancel") for s in splits(6, 2)]
    assert [v.name for v in variants(options, {**facts, "strategy": "tensor"})] == ["one rank"]


@pytest.mark.soak
def test_one_command_reports_it_all(folder: Path) -> None:
    flags = ["-o", "ranks=2", "-o", "strategy=pipeline", "--rounds", "2", "--cancels", "4", "--requests", "0"]
    command = [sys.executable, "-m", "exocli", "bench", "-b", "ring", "-m", str(folder), *flags, "--json"]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["agreement"]["pairs"] > 5 and -1 < report["agreement"]["decode_share"] < 1
    assert report["variants"]["one rank"]["prefill_ratio"] > 0
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    for first, second in splits(layers, 2):
        assert report["variants"][f"split {first}/{second}"]["n"] > 0
    assert report["cancel"]["n"] > 0
