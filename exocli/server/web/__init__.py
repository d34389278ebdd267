"""`GET /` and the files of the web page. Knows nothing of models and requests: the page asks the API.

The files live under a name made of their contents, so that a browser may keep them for good; the page
itself is asked for anew each time. Nothing here needs a key, since nothing here is anybody's.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
PREFIX = "/web/"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Site:
    """The files by name, and `digest`, which changes when any of them does."""

    digest: str
    files: dict[str, bytes]

    def page(self) -> bytes:
        """index.html, with `@@` in it standing for where the files are."""
        return self.files["index.html"].replace(b"@@", f"{PREFIX[1:]}{self.digest}".encode())


@cache
def site() -> Site:
    files = {
        path.relative_to(FOLDER).as_posix(): path.read_bytes()
        for path in sorted(FOLDER.rglob("*"))
        if path.is_file()
    }
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return Site(digest.hexdigest()[:16], files)


@cache
def _small(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)


async def page(http: HttpRequest) -> Response:
    found = site()
    return _answer(http, found.page(), ".html", f'"{found.digest}"', "no-cache")


async def asset(http: HttpRequest) -> Response:
    """`/web/DIGEST/NAME`. Raises 404 for a digest of another version: its page is out of date too."""
    found = site()
    name = http.path_params["name"]
    if http.path_params["digest"] != found.digest or name not in found.files:
        raise HTTPException(404)
    return _answer(http, found.files[name], Path(name).suffix, f'"{found.digest}"', FOREVER)


def _answer(http: HttpRequest, data: bytes, suffix: str, etag: str, caching: str) -> Response:
    headers = {**HEADERS, "ETag": etag, "Cache-Control": caching}
    if etag in http.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in http.headers.get("accept-encoding", ""):
        data = _small(data)
        headers["Content-Encoding"] = "gzip"
    return Response(data, headers=headers, media_type=TYPES.get(suffix, "text/plain; charset=utf-8"))
