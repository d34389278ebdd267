"""Docs that are made from the program are up to date, and what the docs name exists."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import exocli
from exocli import hookspecs

ROOT = Path(__file__).parent.parent


def test_generated_files_are_up_to_date():
    """In a process of its own: without the third-party plugins that this environment has installed."""
    code = (
        f"import runpy, sys; made = runpy.run_path({str(ROOT / 'docs' / 'generate.py')!r})['files']()\n"
        "sys.exit(' '.join(p.name for p, text in made.items() if p.read_text(encoding='utf-8') != text) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, f'run "make docs": {done.stderr.strip()}'


def test_the_makefile_has_what_the_readme_says():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    said = set(re.findall(r"\bmake ([a-z]+)", (ROOT / "README.md").read_text()))
    assert said and said <= targets
    assert {"chat", "test", "lint", "soak", "bench", "docs"} <= targets


def test_links_between_the_docs_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_hooks_are_documented():
    text = (ROOT / "docs" / "architecture.md").read_text() + (ROOT / "README.md").read_text()
    hooks = [name for name in vars(hookspecs) if name.startswith("exo_")]
    assert len(hooks) == 3
    for hook in hooks:
        assert hook in text


def test_the_plugin_in_the_readme_runs(tmp_path, monkeypatch):
    """The README's plugin, as it is printed there."""
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(# exo_echo\.py.*?)```", text, re.S)
    assert len(code.splitlines()) <= 31
    path = tmp_path / "exo_echo.py"
    path.write_text(code)
    names = runpy.run_path(str(path))
    (spec,) = names["exo_backends"]()
    assert isinstance(spec, exocli.BackendSpec) and spec.api == exocli.API
    request = exocli.Request(messages=(exocli.Message(role="user", content="one two"),))
    found = list(names["echo"](request, exocli.CancelToken()))
    assert [e.text for e in found if isinstance(e, exocli.Text)] == ["one ", "two "]
    assert isinstance(found[-1], exocli.Finished)


def test_the_changelog_has_the_version_and_the_plugin_api():
    text = (ROOT / "CHANGELOG.md").read_text()
    from importlib.metadata import version

    assert f"## {version('exocli')}" in text and f"### Plugin API {exocli.API}" in text
