"""A file server on a real socket: ranges, replies that break off, and a count of what was asked."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Files:
    """`files`: path → content. `cut`: path → bytes after which the next reply breaks off, once each.
    `status`: path → an HTTP status to answer instead. `asked`: every (method, path, Range)."""

    files: dict[str, bytes | Path] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    ranges: bool = True
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def json(self, path: str, data: Any) -> None:
        self.files[path] = json.dumps(data).encode()
        self.headers[path] = {"Content-Type": "application/json"}

    def gets(self, path: str) -> int:
        return sum(1 for method, asked, _ in self.asked if method == "GET" and asked == path)


@contextmanager
def serving(files: Files | None = None) -> Iterator[Files]:
    found = files or Files()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(found))
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(found: Files) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = self.path.partition("?")[0]
            asked = self.headers.get("Range")
            found.asked.append((self.command, path, asked))
            content = found.files.get(path)
            status = found.status.get(path, 200 if content is not None else 404)
            if content is None or status >= 400:
                self.send_response(status)
                for name, value in found.headers.get(path, {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = content.read_bytes() if isinstance(content, Path) else content
            size, start, end = len(data), 0, len(data)
            match = re.fullmatch(r"bytes=(\d+)-(\d*)|bytes=-(\d+)", asked or "")
            if match and found.ranges:
                start = size - int(match[3]) if match[3] else int(match[1])
                end = min(size, int(match[2]) + 1) if match[2] else size
                if start >= size:
                    self.send_response(416)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            self.send_response(206 if match and found.ranges else 200)
            if match and found.ranges:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Content-Length", str(end - start))
            if found.ranges:
                self.send_header("Accept-Ranges", "bytes")
            for name, value in found.headers.get(path, {}).items():
                self.send_header(name, value)
            self.end_headers()
            if not body:
                return
            data = data[start:end]
            cuts = found.cut.get(path)
            if cuts:
                self.close_connection = True
                data = data[: cuts.pop(0)]
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    return Handler
