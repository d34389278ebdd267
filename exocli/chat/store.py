"""Conversations on disk: one JSON file each, readable by the owner alone, written whole or not at all.

Knows files; what a turn means is transcript.py's.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from exocli.chat.transcript import Transcript
from exocli.errors import ExoError, UsageError

VERSION = 1


def new_id() -> str:
    """Sorts by time, and is short enough to type: 20261130-094512-3f9c."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@dataclass(kw_only=True)
class Conversation:
    """A transcript, where it is kept, and what it was held with."""

    id: str = field(default_factory=new_id)
    model: str | None = None
    backend: str | None = None
    created: float = field(default_factory=time.time)
    transcript: Transcript


class Store:
    """`folder` need not exist. Reading raises ExoError in words for a person, `save` OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ids(self) -> list[str]:
        """All conversations, the last one used first."""
        found: list[tuple[float, str]] = []
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*.json"):
                with contextlib.suppress(OSError):
                    found.append((path.stat().st_mtime, path.stem))
        return [name for _, name in sorted(found, reverse=True)]

    def latest(self) -> Conversation:
        """Raises UsageError if there is none."""
        ids = self.ids()
        if not ids:
            raise UsageError('There is no conversation to continue; "exo chat" begins one.')
        return self._load(ids[0])

    def find(self, wanted: str) -> Conversation:
        """By id or a unique beginning of one. Raises UsageError for none and for several."""
        fitting = [name for name in self.ids() if name.startswith(wanted)]
        if wanted in fitting:
            fitting = [wanted]
        if not fitting:
            raise UsageError(f'There is no conversation "{wanted}" in {self._folder}.')
        if len(fitting) > 1:
            listed = ", ".join(sorted(fitting)[:5])
            raise UsageError(f'"{wanted}" begins {len(fitting)} conversations ({listed}…): give more of one.')
        return self._load(fitting[0])

    def _load(self, name: str) -> Conversation:
        path = self._folder / f"{name}.json"
        try:
            data = json.loads(path.read_bytes())
            return Conversation(
                id=name,
                model=data.get("model"),
                backend=data.get("backend"),
                created=float(data.get("created", 0.0)),
                transcript=Transcript.from_data(data),
            )
        except OSError as error:
            raise ExoError(f"{path} cannot be read: {error.strerror or error}.") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ExoError(f"{path} is not a conversation of exo's ({error}); move it away.") from error

    def save(self, conversation: Conversation) -> None:
        """Replace its file; one without turns has none. Raises OSError, and then the old file is still
        there."""
        path = self._folder / f"{conversation.id}.json"
        if not conversation.transcript.turns:
            path.unlink(missing_ok=True)
            return
        data = {
            "v": VERSION,
            "id": conversation.id,
            "model": conversation.model,
            "backend": conversation.backend,
            "created": conversation.created,
            "updated": time.time(),
            **conversation.transcript.to_data(),
        }
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, json.dumps(data, ensure_ascii=False, indent=1))


def write_whole(path: Path, text: str) -> None:
    """Write a file that only its owner may read, replacing what is there in one move. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
