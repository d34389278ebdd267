"""The conformance kit itself: it lets a good backend through and finds what is wrong with a bad one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.distribution import write_distribution
from tests.testing.test_authors import PYTEST_ALONE

ROOT = Path(__file__).parent.parent.parent


def run_kit(backend: str, site: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "exocli", "plugins", "test", backend, "--", "-q", "-rf", *PYTEST_ALONE, *args],
        env={**os.environ, "PYTHONPATH": str(site), "EXO_HOME": str(site / "home")},
        cwd=site,
        capture_output=True,
        text=True,
    )


def failed(output: str) -> set[str]:
    return set(re.findall(r"^FAILED .*::(test_\w+)", output, re.M))


def test_the_sample_plugin_passes(tmp_path):
    done = run_kit("sample", tmp_path, "--exo-option", "shout=true")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "The backend sample passes the conformance kit."
    assert failed(done.stdout) == set()


@pytest.mark.soak
def test_an_embedding_model_passes(tmp_path, minilm):
    done = run_kit("mlx", tmp_path, f"--exo-model={minilm}", "-rs")
    assert done.returncode == 0, done.stdout
    assert "it does not chat" in done.stdout and "makes no embeddings" not in done.stdout


def test_a_backend_that_breaks_promises_is_found_out(tmp_path):
    write_distribution(
        tmp_path,
        "liar",
        """
        import itertools
        from exocli import BackendSpec, Capabilities, Finished, Progress, Text, Usage
        from exocli import from_generator, hookimpl

        count = itertools.count()

        def generate(request, cancel):
            yield Text(id=request.id, text=f"early {next(count)} ")
            yield Progress(id=request.id, processed=5, total=9)
            yield Progress(id=request.id, processed=4, total=9)
            yield Finished(id=request.id, reason="stop",
                           usage=Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=0))

        def open_engine(context):
            return from_generator(generate, Capabilities(max_concurrency=9))

        @hookimpl
        def exo_backends():
            yield BackendSpec(
                name="liar", summary="", api=1, protocol="stream", place="inline", open="liar:open_engine",
                probe="liar:gone", capabilities=Capabilities(max_concurrency=1),
            )
        """,
    )
    refused = run_kit("liar", tmp_path, "-k", "it_answers")
    assert refused.returncode == 1 and "its probe failed" in refused.stdout
    module = tmp_path / "liar.py"
    module.write_text(module.read_text().replace('probe="liar:gone", ', ""))
    lies = {
        "test_the_engine_narrows_what_the_spec_promises",
        "test_progress_goes_forward_and_comes_before_the_text",
        "test_one_token_is_one_token",
        "test_greedy_twice_is_the_same",
    }
    done = run_kit("liar", tmp_path, "-k", " or ".join([*lies, "test_two_at_once"]))
    assert done.returncode == 1, done.stdout
    assert failed(done.stdout) == lies
    assert "does not pass" in done.stdout
