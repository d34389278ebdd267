"""Runs a module of this folder as N ranks of an MLX ring, in real processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def run(
    module: str, size: int, folder: Path, *arguments: str, timeout: float = 110
) -> list[tuple[int, str, str]]:
    """(exit status, stdout, stderr) of each rank. Kills them all if one is not done in time."""
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(size)]))
    children = []
    for rank in range(size):
        env = {**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts), "OMP_NUM_THREADS": "1"}
        command: Sequence[str] = [sys.executable, "-m", f"tests.exo_ring.{module}", *arguments]
        pipe = subprocess.PIPE
        children.append(subprocess.Popen(command, env=env, cwd=ROOT, stdout=pipe, stderr=pipe, text=True))
    try:
        answers = [child.communicate(timeout=timeout) for child in children]
        return [(child.returncode, *answer) for child, answer in zip(children, answers, strict=True)]
    finally:
        for child in children:
            child.kill()
            child.communicate()
