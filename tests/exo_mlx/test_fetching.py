"""One file over a real socket: resume, broken connections, wrong content, full disks, cancel."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from exocli import Cancelled, CancelToken, Unavailable

from exo_mlx import fetching
from tests.exo_mlx.servers import Files, serving

CONTENT = os.urandom(3_000_000)
HASH = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def files() -> Iterator[Files]:
    with serving(Files({"/f.bin": CONTENT})) as found:
        yield found


class Seen(list[tuple[int, int]]):
    def __call__(self, done: int, total: int) -> None:
        self.append((done, total))


def fetch(
    files: Files,
    target: Path,
    sha256: str = HASH,
    seen: Seen | None = None,
    cancel: CancelToken | None = None,
) -> None:
    progress = Seen() if seen is None else seen
    url = f"{files.url}/f.bin"
    fetching.fetch(
        url, target, sha256=sha256, what="the file", progress=progress, cancel=cancel or CancelToken()
    )


def test_whole_and_counted(files: Files, tmp_path: Path) -> None:
    seen = Seen()
    fetch(files, tmp_path / "new" / "f.bin", seen=seen)
    assert (tmp_path / "new" / "f.bin").read_bytes() == CONTENT
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["f.bin"]
    assert seen[0] == (0, len(CONTENT)) and seen[-1] == (len(CONTENT), len(CONTENT))


def test_a_part_is_gone_on_with(files: Files, tmp_path: Path) -> None:
    (tmp_path / "f.bin.part").write_bytes(CONTENT[:1_000_000])
    seen = Seen()
    fetch(files, tmp_path / "f.bin", seen=seen)
    assert (tmp_path / "f.bin").read_bytes() == CONTENT
    assert files.asked == [("GET", "/f.bin", "bytes=1000000-")]
    assert seen[0] == (1_000_000, len(CONTENT))


def test_a_part_that_is_all_of_it(files: Files, tmp_path: Path) -> None:
    (tmp_path / "f.bin.part").write_bytes(CONTENT)
    fetch(files, tmp_path / "f.bin")
    assert (tmp_path / "f.bin").read_bytes() == CONTENT


def test_a_server_without_ranges(files: Files, tmp_path: Path) -> None:
    files.ranges = False
    (tmp_path / "f.bin.part").write_bytes(b"old")
    fetch(files, tmp_path / "f.bin")
    assert (tmp_path / "f.bin").read_bytes() == CONTENT


def test_connections_that_break_are_taken_up_again(files: Files, tmp_path: Path) -> None:
    files.cut["/f.bin"] = [1_000_000, 700_000]
    fetch(files, tmp_path / "f.bin")
    assert (tmp_path / "f.bin").read_bytes() == CONTENT
    assert [r for _, _, r in files.asked] == [None, "bytes=1000000-", "bytes=1700000-"]


def test_one_that_always_breaks_keeps_the_part(files: Files, tmp_path: Path) -> None:
    files.cut["/f.bin"] = [200_000] * 9
    with pytest.raises(Unavailable, match="check the network") as caught:
        fetch(files, tmp_path / "f.bin")
    assert "127.0.0.1" in caught.value.message
    assert (tmp_path / "f.bin.part").stat().st_size == 4 * 200_000


def test_other_content_is_thrown_away(files: Files, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="other content"):
        fetch(files, tmp_path / "f.bin", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


ANSWERS = [(404, Unavailable), (503, Unavailable), (401, fetching.Refused)]


@pytest.mark.parametrize(("status", "kind"), ANSWERS)
def test_what_the_server_says(files: Files, tmp_path: Path, status: int, kind: type[Exception]) -> None:
    files.status["/f.bin"] = status
    with pytest.raises(kind, match=f"HTTP {status}"):
        fetch(files, tmp_path / "f.bin")
    assert len(files.asked) == 1


def test_nobody_there(tmp_path: Path) -> None:
    with serving() as files:
        pass
    with pytest.raises(Unavailable, match="Connection refused"):
        fetch(files, tmp_path / "f.bin")


def test_a_full_disk(files: Files, tmp_path: Path) -> None:
    (tmp_path / "f.bin.part").symlink_to("/dev/full")  # every write there fails as on a full disk
    with pytest.raises(Unavailable, match=r"disk that holds .* is full"):
        fetch(files, tmp_path / "f.bin")


def test_a_folder_that_cannot_be_written(files: Files, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for nowhere in (tmp_path / "file", Path("/proc/nope")):
        with pytest.raises(Unavailable, match=r"cannot be written .*: set EXO_HOME"):
            fetch(files, nowhere / "models" / "f.bin")


def test_a_cancel_stops_and_keeps_the_part(files: Files, tmp_path: Path) -> None:
    cancel = CancelToken()

    class Stop(Seen):
        def __call__(self, done: int, total: int) -> None:
            if done > 1_000_000:
                cancel.cancel()

    with pytest.raises(Cancelled):
        fetch(files, tmp_path / "f.bin", seen=Stop(), cancel=cancel)
    size = (tmp_path / "f.bin.part").stat().st_size
    assert 1_000_000 < size < len(CONTENT)
    fetch(files, tmp_path / "f.bin")
    assert (tmp_path / "f.bin").read_bytes() == CONTENT and files.asked[-1][2] == f"bytes={size}-"


def test_one_at_a_time_and_who_waits_can_be_cancelled(tmp_path: Path) -> None:
    lock, cancel, outcome = tmp_path / "sub" / "lock", CancelToken(), []

    def second() -> None:
        try:
            with fetching.locked(lock, cancel):
                outcome.append("in")
        except Cancelled:
            outcome.append("cancelled")

    with fetching.locked(lock, CancelToken()):
        thread = threading.Thread(target=second)
        thread.start()
        cancel.cancel()
        thread.join(10)
    assert outcome == ["cancelled"]
