"""What docs/plugins.md tells a plugin author works as it stands there; the kit on our own engines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import exocli
import pytest
from exocli.testing import pytest_plugin, suite

from tests.support.distribution import write_distribution

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")

PYTEST_ALONE = [
    word
    for name in ("cacheprovider", "asyncio", "anyio", "hypothesispytest", "schemathesis", "xdist")
    for word in ("-p", f"no:{name}")
]
"""The kit needs no more."""


def run(site: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("EXO_")}
    env |= {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "EXO_HOME": str(site / "home")}
    command = [sys.executable, "-m", *args]
    return subprocess.run(command, env=env, cwd=site, capture_output=True, text=True, timeout=120)


def kit(site: Path, backend: str, *args: str) -> subprocess.CompletedProcess[str]:
    flags = ["-q", "-rfsx", *PYTEST_ALONE]
    return run(site, "pytest", *flags, "--pyargs", "exocli.testing.suite", "--exo-backend", backend, *args)


@pytest.fixture
def backwards(tmp_path: Path) -> Path:
    """The page's backend, installed as its pyproject says."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (project,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    written = tomllib.loads(project)["project"]
    ((name, module),) = written["entry-points"]["exo"].items()
    assert (name, module) == ("backwards", "exo_backwards") and code.startswith("# exo_backwards.py")
    assert len([line for line in code.splitlines() if line.strip()]) <= 32
    write_distribution(tmp_path, module, code)
    (info,) = tmp_path.glob("*.dist-info")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {written['name']}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[exo]\n{name} = {module}\n")
    return tmp_path


def test_the_pages_backend_runs_and_is_found_in_order(backwards: Path) -> None:
    said = run(backwards, "exocli", "run", "--no-stdin", "-b", "backwards", "one two three")
    assert (said.returncode, said.stdout.strip()) == (0, "three two one"), said.stderr
    checked = run(backwards, "exocli", "plugins", "check", "backwards")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_pages_backend_passes_the_kit(backwards: Path) -> None:
    done = kit(backwards, "backwards")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "options", [pytest.param(["ranks=1"], marks=pytest.mark.soak), ["ranks=2", "ring=."]]
)
def test_a_step_engine_passes_the_whole_kit_on_one_and_on_two_ranks(
    tmp_path: Path, options: list[str]
) -> None:
    code = """
        from dataclasses import replace
        from exocli import hookimpl
        from tests.support.engines import spec

        @hookimpl
        def exo_backends():
            yield replace(spec(), name="count")
        """
    write_distribution(tmp_path, "exo-count", code)
    done = kit(tmp_path, "count", *(word for option in options for word in ("--exo-option", option)))
    assert done.returncode == 0, done.stdout
    skipped = [line for line in re.findall(r"^SKIPPED .*", done.stdout, re.M) if "embeddings" not in line]
    reasons = sorted(line.partition(": ")[2] for line in skipped)
    assert [reason.split()[1] for reason in reasons] == ["context", "formats"], "all else is tried"


def test_a_known_failure_has_a_reason_and_goes_on_failing(backwards: Path) -> None:
    module = backwards / "exo_backwards.py"
    good = module.read_text()
    module.write_text(good.replace('text=word + " "', 'text=f"{request.id} {word} "'))  # never twice the same
    flag = "test_greedy_twice_is_the_same=it adds a number"
    only = ("-k", "greedy_twice")
    assert kit(backwards, "backwards", *only).returncode == 1
    known = kit(backwards, "backwards", "--exo-xfail", flag, *only)
    assert known.returncode == 0 and "it adds a number" in known.stdout
    module.write_text(good)
    assert kit(backwards, "backwards", "--exo-xfail", flag, *only).returncode == 1, "no longer a failure"


@pytest.mark.parametrize("bad", ["test_of_another_name=why", "test_it_answers= "])
def test_a_known_failure_is_a_test_of_the_kit_and_has_a_reason(bad: str) -> None:
    config = SimpleNamespace(getoption=lambda name, default: [bad])
    item = SimpleNamespace(name="test_it_answers", module=suite)
    with pytest.raises(pytest.UsageError, match="--exo-xfail takes"):
        pytest_plugin.pytest_collection_modifyitems(config, [item])  # type: ignore[arg-type, list-item]


def test_the_page_names_what_there_is() -> None:
    """Flags, engines and errors that the page speaks of."""
    source = Path(pytest_plugin.__file__).read_text()
    assert all(flag in source for flag in re.findall(r"--exo-[a-z]+", PAGE))
    assert all(hasattr(suite, name) for name in re.findall(r"\btest_\w+", PAGE))
    for name in ("StreamEngine", "StepEngine", "from_generator", "BadRequest", "ContextOverflow"):
        assert name in PAGE and name in exocli.__all__
