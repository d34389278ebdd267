"""Where this machine's `exo serve` is: run/serve.json, written by the server, read by `chat` and `run`.

A further server beside it has run/serve-2.json, and so on. The server holds a lock on its file while it
lives: a file that nobody locks is one that a server left behind, however it ended and whoever has its process
id now.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from exocli import config


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """`models`: the names that it serves. `started`: by time.time()."""

    url: str
    pid: int
    models: tuple[str, ...]
    started: float


SERVERS = 16
"""At most so many at once are told of."""


def _paths() -> list[Path]:
    folder = config.data_dir("run")
    return [folder / "serve.json", *(folder / f"serve-{number}.json" for number in range(2, SERVERS + 1))]


@contextmanager
def advertised(url: str, models: Sequence[str]) -> Iterator[None]:
    """Tell of a server for as long as the block runs.

    A folder that cannot be written only means that nobody finds it by itself.
    """
    path = next((path for path in _paths() if _read(path) is None), _paths()[0])
    address = Address(url=_reachable(url), pid=os.getpid(), models=tuple(models), started=time.time())
    file = _locked(path, address)
    if file is None:
        yield
        return
    with file:
        try:
            yield
        finally:
            with suppress(OSError):
                if path.stat().st_ino == os.fstat(file.fileno()).st_ino:  # else another one took over
                    path.unlink()


def _locked(path: Path, address: Address) -> TextIO | None:
    """The file in its place, locked as long as it is open; None where that cannot be."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError), ExitStack() as failed:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
        failed.callback(part.unlink, missing_ok=True)
        failed.enter_context(file)
        fcntl.flock(file, fcntl.LOCK_EX)  # before it has its name: who sees it sees it locked
        json.dump(asdict(address), file)
        file.flush()
        part.replace(path)
        failed.pop_all()
        return file
    return None


def find() -> Address | None:
    """Of the servers that run now the last to start, or None. Whether it lets us in is for whoever connects
    to see."""
    found = [address for path in _paths() if (address := _read(path)) is not None]
    return max(found, key=lambda address: address.started, default=None)


def _read(path: Path) -> Address | None:
    """Whose file this is; None where that server is gone."""
    try:
        with path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                data = json.load(file)
            else:
                return None
        return Address(
            url=str(data["url"]),
            pid=int(data["pid"]),
            models=tuple(map(str, data["models"])),
            started=float(data["started"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _reachable(url: str) -> str:
    """A server that listens everywhere is reached at this machine's own address."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
