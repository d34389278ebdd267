"""Ctrl-C while `exo run -b ring` reads or writes: the receipt of all ranks, which left at one step."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROMPT = " ".join(f"Item {i} has the value {i * 37 % 101}." for i in range(100))


def real(*case: Any) -> Any:
    return pytest.param(*case, marks=(pytest.mark.soak, pytest.mark.real))


@pytest.mark.parametrize(
    ("model", "size", "phase"),
    [
        ("folder", 2, "prefill"),
        *(real("smollm2", size, phase) for size in (2, 3) for phase in ("prefill", "decode")),
    ],
)
def test_ctrl_c(request: pytest.FixtureRequest, home: Path, model: str, size: int, phase: str) -> None:
    """The last line is the receipt, and the shell sees 130."""
    command = [sys.executable, "-m", "exocli", "run", "-b", "ring", "--json", "-o", "chunk=32"]
    flags = ["-m", str(request.getfixturevalue(model)), "-o", f"ranks={size}"]
    prompt = PROMPT if phase == "prefill" else "Tell me a long story."
    with subprocess.Popen(
        [*command, *flags, prompt], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        texts, pressed = 0, False
        last: dict[str, Any] = {}
        for line in child.stdout:
            last = json.loads(line)
            texts += last["type"] == "text"
            read = last["type"] == "progress" and last["processed"] >= 64
            if not pressed and (read if phase == "prefill" else texts >= 5):
                pressed = True
                os.kill(child.pid, signal.SIGINT)
        assert last["type"] == "finished" and last["reason"] == "cancelled"
        receipt = last["cancel"]
        assert receipt["ranks"] == size and receipt["phase"] == phase and not receipt["killed"]
        assert phase == "decode" or 64 <= receipt["processed"] < receipt["total"]
    assert child.returncode == -signal.SIGINT
    logs = [(home / "logs" / f"ring-rank{rank}.log").read_text() for rank in range(size)]
    steps = [re.findall(rf"left {last['id']} at step (\d+)", log) for log in logs]
    assert len(steps[0]) == 1 and all(each == steps[0] for each in steps)
