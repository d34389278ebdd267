"""Files that a request brings (images): kept on disk while it runs, as worker processes read them there.

One private folder a server, removed when it ends; a file goes when its request is over.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from exocli.types import Request


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="exo-serve-")


def write(data: bytes) -> str:
    """→ the path of a new file, readable by this user alone."""
    with tempfile.NamedTemporaryFile(dir=_folder().name, delete=False) as file:
        file.write(data)
    return file.name


def discard(request: Request) -> None:
    """Remove what a request brought."""
    for message in request.messages:
        for part in message.content if isinstance(message.content, tuple) else ():
            if part.path is not None and Path(part.path).parent == Path(_folder().name):
                with suppress(OSError):
                    Path(part.path).unlink()
