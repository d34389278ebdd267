"""Who is named when ranks are lost."""

from __future__ import annotations

from exocli.errors import EngineFailed, Unavailable
from exocli.runtime.verdict import Verdict


def verdict(*tail: str, started: int = 2) -> Verdict:
    one = Verdict("ring", lambda rank: f"Rank {rank}", lambda rank: list(tail))
    for rank in range(started):
        one.started(rank)
    return one


def test_nobody_is_blamed_before_anything_happened():
    assert verdict().culprit() is None


def test_who_ended_silently_comes_before_who_complained():
    one = verdict("Segmentation fault")
    one.complained(0, EngineFailed("the peer is lost"))
    one.ended(0, "ended with status 1")
    one.ended(1, "ended with status 139")
    error = one.culprit()
    assert error is not None and error.details["rank"] == 1
    assert error.message == "Rank 1 of ring ended with status 139. Its last line: Segmentation fault"
    assert one.gone == 2


def test_a_command_that_starts_no_rank_is_no_rank_that_died():
    one = verdict("ssh: no route to host", started=1)
    one.ended(1, "ended with status 255")
    error = one.culprit()
    assert isinstance(error, Unavailable) and error.exit_code == 3
    assert error.message == (
        "Rank 1 of ring could not be started: its command ended with status 255. "
        "Its last line: ssh: no route to host"
    )


def test_a_kill_needs_no_last_line():
    one = verdict("something older")
    one.ended(0, "was killed (SIGKILL: by hand)")
    error = one.culprit()
    assert error is not None and "older" not in error.message


def test_a_complaint_alone_is_passed_on():
    one, error = verdict(), EngineFailed("no such layer")
    one.complained(2, error)
    one.ended(2, "ended with status 1")
    assert one.culprit() is error
