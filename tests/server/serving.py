"""Starts a real `exo serve` in a process of its own, and speaks to it over real sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.support.distribution import write_distribution

ROOT = Path(__file__).parents[2]
PLUGIN = "from tests.support.scripted import exo_backends, exo_server_routes  # noqa: F401\n"


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a process that finds the scripted engine as an installed plugin."""
    site = home / "site"
    if not site.exists():
        site.mkdir(parents=True)
        write_distribution(site, "exo-scripted", PLUGIN)
    env = {name: value for name, value in os.environ.items() if not name.startswith("EXO_")}
    return {**env, "EXO_HOME": str(home), "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", **more}


class Serving:
    """One server process. `url` once it listens; `log` holds its stderr so far."""

    def __init__(
        self, home: Path, *flags: str, env: dict[str, str] | None = None, backend: str = "scripted"
    ) -> None:
        self.log: list[str] = []
        self._more = threading.Condition()
        command = [sys.executable, "-m", "exocli", "serve", "-b", backend, "--port", "0", *flags]
        self.process = subprocess.Popen(
            command,
            env=environment(home, **(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        line = self.wait_log(r"http://\S+")
        found = re.search(r'http://[^\s"]+', line)
        assert found
        self.url = found[0]
        self.host, port = self.url.removeprefix("http://").rsplit(":", 1)
        self.port = int(port)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                self.log.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def wait_log(self, pattern: str, seconds: float = 15.0, after: int = 0) -> str:
        """The first line of the log that matches, or a failure with the whole log."""
        deadline = time.monotonic() + seconds
        with self._more:
            while True:
                for line in self.log[after:]:
                    if re.search(pattern, line):
                        return line
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self._reader.is_alive()):
                    raise AssertionError(f"no line like {pattern!r} in:\n" + "\n".join(self.log))
                self._more.wait(min(left, 0.5))

    # -------------------------------------------------------------------------------- asking

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, verify=False, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        with self.client() as client:
            return client.get(path, **more)

    def post(self, path: str, data: Any = None, **more: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=data, **more)

    def requests(self, **more: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get("/v1/requests", **more).json()["data"]
        return rows

    def wait_requests(
        self, test: Callable[[list[dict[str, Any]]], bool], seconds: float = 10.0, **more: Any
    ) -> list[dict[str, Any]]:
        """Ask /v1/requests until `test` holds for its rows; less often the longer it takes."""
        begin = time.monotonic()
        with self.client() as client:
            while True:
                rows: list[dict[str, Any]] = client.get("/v1/requests", **more).json()["data"]
                if test(rows):
                    return rows
                waited = time.monotonic() - begin
                assert waited < seconds, rows
                time.sleep(min(0.05, max(0.005, waited / 10)))

    def wait_idle(self, seconds: float = 5.0, **more: Any) -> None:
        self.wait_requests(lambda rows: not rows, seconds, **more)

    def open(self, path: str, data: Any, headers: dict[str, str] | None = None) -> socket.socket:
        """A raw connection that has sent a POST and reads nothing."""
        body = json.dumps(data).encode()
        head = {"Host": f"{self.host}:{self.port}", "Content-Type": "application/json", **(headers or {})}
        head["Content-Length"] = str(len(body))
        lines = "".join(f"{key}: {value}\r\n" for key, value in head.items())
        connection = socket.create_connection((self.host.strip("[]"), self.port), timeout=20)
        connection.sendall(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return connection

    # --------------------------------------------------------------------------------- ending

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self._reader.join(5)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def chat(text: str, **more: Any) -> dict[str, Any]:
    """A Chat Completions body."""
    return {"messages": [{"role": "user", "content": text}], **more}


def data_of(lines: Iterator[str]) -> Iterator[Any]:
    """The JSON of each `data:` line, until [DONE]."""
    for line in lines:
        if line.startswith("data: "):
            if line == "data: [DONE]":
                return
            yield json.loads(line[6:])
