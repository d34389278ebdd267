from __future__ import annotations

import os
import resource
import signal
import stat
from pathlib import Path

import pytest
from exocli import Finished
from exocli.chat.store import Conversation, Store
from exocli.chat.transcript import Transcript
from exocli.errors import ExoError, UsageError


def conversation(name: str, question: str = "a") -> Conversation:
    transcript = Transcript()
    transcript.ask(question)
    transcript.settle("b", Finished(id="x", reason="stop"))
    return Conversation(id=name, model="m", backend="k", transcript=transcript)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "conversations")


def test_saved_and_found_again(store: Store, tmp_path: Path) -> None:
    store.save(conversation("20260101-000000-aaaa"))
    found = store.find("20260101-000000-aaaa")
    assert (found.model, found.backend) == ("m", "k")
    assert [turn.text for turn in found.transcript.turns] == ["a", "b"]
    path = tmp_path / "conversations" / "20260101-000000-aaaa.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path], "nothing is left beside it"


def test_one_without_turns_has_no_file(store: Store, tmp_path: Path) -> None:
    empty = Conversation(id="one", transcript=Transcript("be kind"))
    store.save(empty)
    assert not (tmp_path / "conversations").exists()
    store.save(conversation("one"))
    store.save(empty)
    assert list((tmp_path / "conversations").iterdir()) == []


def test_the_latest_is_the_last_one_used(store: Store, tmp_path: Path) -> None:
    for name, when in (("new", 100), ("old", 50), ("used", 200)):
        store.save(conversation(name))
        os.utime(tmp_path / "conversations" / f"{name}.json", (when, when))
    assert store.ids() == ["used", "new", "old"]
    assert store.latest().id == "used"


def test_a_unique_beginning_will_do(store: Store) -> None:
    for name in ("2026-a", "2026-b", "2026-bb"):
        store.save(conversation(name))
    assert store.find("2026-a").id == "2026-a"
    assert store.find("2026-b").id == "2026-b"
    with pytest.raises(UsageError, match=r"begins 3 conversations \(2026-a, 2026-b, 2026-bb…\)"):
        store.find("2026")
    with pytest.raises(UsageError, match='no conversation "2025"'):
        store.find("2025")


def test_none_to_continue(store: Store) -> None:
    with pytest.raises(UsageError, match="no conversation to continue"):
        store.latest()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"turns": [{"role": "user"}]}', '{"turns": 3}', "\xff"])
def test_a_file_that_is_no_conversation(store: Store, tmp_path: Path, text: str) -> None:
    (tmp_path / "conversations").mkdir()
    (tmp_path / "conversations" / "bad.json").write_text(text, encoding="latin-1")
    with pytest.raises(ExoError, match=r"bad\.json is not a conversation"):
        store.latest()


def test_a_write_that_fails_leaves_the_old_file(store: Store, tmp_path: Path) -> None:
    store.save(conversation("one", "first"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)  # a disk that fills up in the middle of a write
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            store.save(conversation("one", "second " * 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert store.find("one").transcript.turns[0].text == "first"
    assert [p.name for p in (tmp_path / "conversations").iterdir()] == ["one.json"]
