"""The direction of imports, as in docs/architecture.md: read from the source, not from a running program."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import exocli
import pytest

ROOT = Path(__file__).parent.parent

LEVELS = (
    ("errors", "types", "cancel"),
    ("config", "options"),
    ("backend", "engine", "generator", "served", "supported"),
    ("hookspecs", "names"),
    ("plugins",),
    ("runtime", "benchmark_requests"),
    ("cli", "chat", "server", "testing", "benchmarks", "benchmark_variants", "__main__"),
)
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}
PLUGIN_ARROWS = {("exo_ring", "exo_mlx")}


def imports_of(path: Path) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """(line, module, names) of each import in a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield node.lineno, node.module or "", tuple(alias.name for alias in node.names)


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def part_of(module: str, names: tuple[str, ...]) -> Iterator[str]:
    """The parts of exocli that an import reaches: `from exocli import config` is `config`."""
    parts = module.split(".")
    if parts[0] == "exocli":
        if len(parts) > 1:
            yield parts[1]
        else:
            yield from (name for name in names if name in LEVEL)


def test_exocli_imports_downwards_only():
    wrong = []
    for path in sources(ROOT / "exocli"):
        own = path.relative_to(ROOT / "exocli").parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for line, module, names in imports_of(path):
            wrong += [
                f"{path.relative_to(ROOT)}:{line} imports exocli.{part}"
                for part in part_of(module, names)
                if LEVEL[part] > LEVEL[own]
            ]
    assert not wrong, "\n".join(wrong)


def test_the_core_does_not_know_its_plugins():
    wrong = []
    for path in sources(ROOT / "exocli"):
        for line, module, _ in imports_of(path):
            if module.split(".")[0] in ("exo_mlx", "exo_ring", "exo_remote", "mlx", "mlx_lm"):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_plugins_use_public_names_and_not_each_other():
    wrong = []
    for folder in sorted((ROOT / "plugins").glob("*/exo_*")):
        for path in sources(folder):
            for line, module, names in imports_of(path):
                top = module.split(".")[0]
                where = f"{path.relative_to(ROOT)}:{line}"
                if module == "exocli":
                    wrong += [f"{where}: {name} is not public" for name in {*names} - {*exocli.__all__}]
                elif top == "exocli":
                    wrong.append(f"{where} imports {module}; plugins import from exocli alone")
                elif top.startswith("exo_") and (folder.name, top) not in {
                    *PLUGIN_ARROWS,
                    (folder.name,) * 2,
                }:
                    wrong.append(f"{where} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_what_is_public_is_there_and_complete():
    assert len(exocli.__all__) == len(set(exocli.__all__))
    for name in exocli.__all__:
        assert getattr(exocli, name) is not None
    assert set(exocli._MODULE_OF) == set(exocli.__all__)
    assert set(exocli.__all__) <= set(dir(exocli))
    with pytest.raises(AttributeError):
        _ = exocli.no_such_name


def test_importing_the_public_package_is_nothing():
    code = "import sys, exocli; print(*(name for name in sys.modules if name.startswith('exocli.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_worker_begins_with_little():
    """Each rank of each model pays for what is imported before its engine."""
    code = "import sys, exocli.runtime.worker; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"click", "pluggy", "httpx", "rich", "pydantic", "mlx", "numpy", "tomllib", "email", "zipfile"}
    assert not heavy & set(done.stdout.split())


def test_every_module_says_what_it_is_for():
    for path in [*sources(ROOT / "exocli"), *sources(ROOT / "plugins")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree) or not tree.body, f"{path.relative_to(ROOT)} has no docstring"
