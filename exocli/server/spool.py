"""Files that a request brings (images): kept on disk while it runs, as worker processes read them there.

One private folder a server, removed when it ends; a file goes when its request is over.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from exocli.types import Request

_written: ContextVar[list[str] | None] = ContextVar("written", default=None)
"""What `all_or_none` would have to take back."""


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="exo-serve-")


def write(data: bytes) -> str:
    """→ the path of a new file, readable by this user alone."""
    with tempfile.NamedTemporaryFile(dir=_folder().name, delete=False) as file:
        file.write(data)
    if (written := _written.get()) is not None:
        written.append(file.name)
    return file.name


@contextmanager
def all_or_none() -> Iterator[None]:
    """A block that fails leaves none of the files that it wrote."""
    written: list[str] = []
    token = _written.set(written)
    try:
        yield
    except BaseException:
        for path in written:
            _remove(path)
        raise
    finally:
        _written.reset(token)


def discard(request: Request) -> None:
    """Remove what a request brought."""
    for message in request.messages:
        for part in message.content if isinstance(message.content, tuple) else ():
            if part.path is not None and Path(part.path).parent == Path(_folder().name):
                _remove(part.path)


def _remove(path: str) -> None:
    with suppress(OSError):
        Path(path).unlink()
