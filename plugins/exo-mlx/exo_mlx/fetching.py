"""Downloads one file whose hash is known: with resume, progress and cancel, and in one sentence if not.

Also what every fetch shares: the lock that lets one process do it while others wait, and disk errors as
sentences. Knows URLs and files; no model and no index.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from exocli import CancelToken, ProgressFn, Unavailable

_BLOCK = 256 * 1024
_SILENCE_S = 30.0
_TRIES = 4
_WAIT_S = 0.2


class Refused(Unavailable):
    """The server wants credentials for the file, or its address is none that can be streamed."""


def fetch(
    url: str, target: Path, *, sha256: str, what: str, progress: ProgressFn, cancel: CancelToken
) -> None:
    """Stream `url` into `target`, going on from `target`.part if there is one; progress in bytes.

    A connection that breaks is taken up again a few times. Raises Unavailable (no network, broken off,
    other content than `sha256` names), Refused, Cancelled; the part file stays unless its content is wrong.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise Refused(f"{what} is not offered over HTTP.")
    part = target.with_name(target.name + ".part")
    with writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in reversed(range(_TRIES)):
            before = _size(part)
            try:
                _stream(url, part, progress, cancel)
                break
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                cancel.raise_if_cancelled()
                if left == 0 or _size(part) == before or isinstance(error, urllib.error.HTTPError):
                    raise _unavailable(error, url, what) from error
        if _sha256(part, cancel) != sha256:
            part.unlink()
            raise Unavailable(f"{what} came with other content than expected; it was thrown away. Try again.")
        part.replace(target)


def _stream(url: str, part: Path, progress: ProgressFn, cancel: CancelToken) -> None:
    start = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=_SILENCE_S, context=_tls())
    except urllib.error.HTTPError as error:
        error.close()
        if start and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it is here; the hash decides
        raise
    with response:
        if response.status != http.client.PARTIAL_CONTENT:
            start = 0  # the server sends all of it
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else 0
        with part.open("ab" if start else "wb") as out:
            done = start
            progress(done, total)
            while block := response.read(_BLOCK):
                cancel.raise_if_cancelled()
                out.write(block)
                done += len(block)
                progress(done, total)
        if done < total:
            raise http.client.IncompleteRead(b"", total - done)


def _tls() -> ssl.SSLContext:
    """The certificates that pip is told to use; else the system's and certifi's together."""
    names = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    given = next((value for name in names if (value := os.environ.get(name))), None)
    context = ssl.create_default_context(cafile=given)
    if given is None:
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _unavailable(error: Exception, url: str, what: str) -> Unavailable:
    host = urllib.parse.urlsplit(url).hostname or "the server"
    if isinstance(error, urllib.error.HTTPError):
        if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            return Refused(f"{host} refuses {what} (HTTP {error.code}).")
        return Unavailable(f"{host} does not give {what} (HTTP {error.code} {error.reason}).")
    reason = getattr(error, "reason", None) or error
    detail = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return Unavailable(
        f"{what} could not be fetched whole from {host} ({detail}): check the network and run it again; "
        "what is there is kept."
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def sha256_of(path: Path, cancel: CancelToken | None = None) -> str:
    """The file's SHA-256, in hex."""
    return _sha256(path, cancel or CancelToken())


def _sha256(path: Path, cancel: CancelToken) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            cancel.raise_if_cancelled()
            digest.update(block)
    return digest.hexdigest()


def copy(source: IO[bytes], target: Path, cancel: CancelToken) -> None:
    """Write all of `source` to `target`."""
    with target.open("wb") as out:
        while block := source.read(1 << 20):
            cancel.raise_if_cancelled()
            out.write(block)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """OSErrors of writing below `folder` as Unavailable, in one sentence with the way out."""
    try:
        yield
    except OSError as error:
        told = disk_error(error, folder, "EXO_HOME")
        if told is None:
            raise
        raise told from error


def disk_error(error: OSError, folder: Path, variable: str) -> Unavailable | None:
    """A full disk or a folder that cannot be written, as a sentence; `variable` moves the folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(f"The disk that holds {folder} is full: make room and run it again.")
    # where the system allows no folder at all, as in /proc, that a parent is missing is what one is told
    nowhere = error.errno == errno.ENOENT and Path(error.filename or "") in (folder, *folder.parents)
    if nowhere or error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return Unavailable(
            f"{error.filename or folder} cannot be written ({error.strerror}): "
            f"set {variable} to a folder that can."
        )
    return None


@contextmanager
def locked(path: Path, cancel: CancelToken) -> Iterator[None]:
    """One process at a time; the others wait here, and can be cancelled while they do."""
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    while True:
        cancel.raise_if_cancelled()
        try:
            lock.acquire(timeout=_WAIT_S)
            break
        except Timeout:
            continue
    try:
        yield
    finally:
        lock.release()
