"""The default model's greedy tokens are those of transformers and torch on the CPU in float32.

torch is fetched for this alone into tests/.cache, never into the environment: a CPU wheel where pip finds
one, else what the index has, which on Linux brings CUDA with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from exocli import Message
from filelock import FileLock
from mlx.utils import tree_flatten

from exo_mlx import loader
from tests.exo_mlx.conftest import CACHE
from tests.exo_mlx.kinds import Driver

pytestmark = pytest.mark.soak

TORCH = "2.13.0"
TOKENS, BATCH = 16, 5
PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain gravity to a child.",
    "List three prime numbers.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "What is 17 + 25?",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Name a famous painter and one of the paintings.",
    "Write a Python function that adds two numbers.",
    "What does HTTP stand for?",
    "Tell me a joke.",
    "How do bees make honey?",
    "What is the largest planet?",
    "Summarise the plot of Cinderella in one sentence.",
    "What are the primary colours?",
    "How many legs does a spider have?",
    "Give a synonym for 'happy'.",
    "What is photosynthesis?",
]
ASK = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)  # two wait for each other on a busy machine
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, local_files_only=True).eval()
answers = []
for prompt in json.load(open(sys.argv[2])):
    ids = torch.tensor([prompt["tokens"]])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                             max_new_tokens=prompt["max"], eos_token_id=prompt["end"], pad_token_id=0)
    answers.append(out[0, ids.shape[1]:].tolist())
json.dump(answers, open(sys.argv[3], "w"))
"""


@pytest.fixture(scope="session")
def torch_path() -> Path:
    """A folder with torch in it, to be put on a child's path."""
    folder = CACHE / f"torch-{TORCH}"
    CACHE.mkdir(exist_ok=True)
    with FileLock(CACHE / "torch.lock"):
        if not (folder / "torch").is_dir():
            pip = (sys.executable, "-m", "pip", "install", "-q", "--target", str(folder))
            subprocess.run([*pip, f"torch=={TORCH}"], check=True)
    return folder


def write_dense(loaded: loader.Loaded, folder: Path) -> None:
    """The weights written out in float32 by the names that transformers gives them, which are mlx-lm's."""
    folder.mkdir()
    arrays = dict(tree_flatten(loaded.model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, {"format": "pt"})
    config = {name: value for name, value in loaded.config.items() if not name.startswith("quantization")}
    (folder / "config.json").write_text(json.dumps(config))


def test_greedy_tokens_equal_those_of_transformers(smollm2: Path, torch_path: Path, tmp_path: Path) -> None:
    """The engine's, several prompts in a batch, against torch, one after the other."""
    driver = Driver(smollm2, chunk=128)
    loaded = driver.engine._loaded
    got: list[list[int]] = []
    questions: list[dict[str, Any]] = []
    end = sorted(loaded.end_tokens)
    for first in range(0, len(PROMPTS), BATCH):
        ids = [
            driver.start("", TOKENS, messages=(Message(role="user", content=prompt),))
            for prompt in PROMPTS[first : first + BATCH]
        ]
        got += driver.run(*ids)
        for one in ids:
            questions.append({"tokens": driver.prepared[one].tokens, "max": TOKENS, "end": end})
    write_dense(loaded, tmp_path / "dense")
    (tmp_path / "questions.json").write_text(json.dumps(questions))
    files = [str(tmp_path / name) for name in ("dense", "questions.json", "answers.json")]
    environment = {**os.environ, "PYTHONPATH": str(torch_path), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", ASK, *files], check=True, env=environment)
    expected = json.loads((tmp_path / "answers.json").read_text())
    assert len(got) == 20 and got == [[t for t in answer if t not in end] for answer in expected]
