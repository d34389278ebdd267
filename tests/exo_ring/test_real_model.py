"""The default model on a ring, through the command line: Paris, and the very text of one rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
QUESTION = "What is the capital of France?"
STORY = "Tell me about the history of Paris in three sentences."


def ask(model: Path, question: str, *options: str, backend: str = "ring") -> dict[str, Any]:
    """The one JSON object of `exo run --json --no-stream`."""
    command = [
        sys.executable,
        "-m",
        "exocli",
        "run",
        "-b",
        backend,
        "-m",
        str(model),
        "--json",
        "--no-stream",
    ]
    arguments = [*command, *options, "--max-tokens", "16", question]
    done = subprocess.run(arguments, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def alone(smollm2: Path) -> str:
    text: str = ask(smollm2, STORY, backend="mlx")["text"]
    return text


@pytest.mark.soak  # tests/real does it on two ranks
@pytest.mark.parametrize(
    "options", ["ranks=2", "ranks=3", "split=20,10", "split=5,25", "ranks=3 strategy=tensor"]
)
def test_the_text_of_one_rank(smollm2: Path, alone: str, options: str) -> None:
    flags = [word for option in options.split() for word in ("-o", option)]
    assert ask(smollm2, STORY, *flags)["text"] == alone


@pytest.mark.soak
def test_paris(smollm2: Path) -> None:
    assert "Paris" in ask(smollm2, QUESTION, "-o", "ranks=2")["text"]


def test_tensor_parallel_is_refused_where_heads_do_not_divide(smollm2: Path) -> None:
    command = [sys.executable, "-m", "exocli", "run", "-b", "ring", "-m", str(smollm2), QUESTION]
    done = subprocess.run([*command, "-o", "strategy=tensor"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "exo: smollm2 cannot run tensor parallel on 2 ranks: 9 attention heads and 3 KV heads do not divide "
        "by 2; use strategy=pipeline.\n"
    )
