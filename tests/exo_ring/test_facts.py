"""What keeps ranks from working together is found before any weights, with rank, host and the way out."""

from __future__ import annotations

from typing import Any

import pytest
from exocli import Unavailable

from exo_ring import facts

SAME = {
    "host": "a",
    "versions": {"python": "3.11", "exocli": "1.0", "mlx": "0.32.4", "mlx-lm": "0.32.2"},
    "view": "v",
    "model": "f00d",
}


def test_ranks_that_are_alike() -> None:
    assert facts.problems([SAME, {**SAME, "host": "b"}], "m") == []
    assert set(facts.versions()) == set(SAME["versions"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["python", "exocli", "mlx", "mlx-lm"])
def test_another_version(name: str) -> None:
    versions: Any = SAME["versions"]
    other = {**SAME, "host": "b", "versions": {**versions, name: "9"}}
    (problem,) = facts.problems([SAME, other], "m")
    expected = f"Rank 1 on b has {name} 9, rank 0 on a has {versions[name]}: install one version."
    assert problem == expected


def test_another_view_of_the_ring() -> None:
    (problem,) = facts.problems([SAME, {**SAME, "host": "b", "view": "w"}], "m")
    assert problem == "Rank 1 on b was given another ring than rank 0: start them all from one hostfile."


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("f00d", None, 'Rank 1 on b does not have the model m: run "exo models pull m" there.'),
        (None, "f00d", 'Rank 0 on a does not have the model m: run "exo models pull m" there.'),
        ("f00d", "beef", "Rank 1 on b has another m than rank 0 on a: fetch it anew there."),
    ],
)
def test_a_model_that_is_not_there_or_not_the_same(first: str | None, second: str | None, said: str) -> None:
    everyone = [{**SAME, "model": first}, {**SAME, "host": "b", "model": second}]
    assert facts.problems(everyone, "m") == [said]
    with pytest.raises(Unavailable, match="Rank"):
        facts.check(everyone, "m")


def test_everything_is_told_at_once() -> None:
    other = {**SAME, "host": "b", "view": "w", "model": None}
    assert len(facts.problems([SAME, other], "m")) == 2
