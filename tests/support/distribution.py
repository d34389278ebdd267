"""A third-party distribution as pip leaves it: a module, its .dist-info, an entry point of group `exo`."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent


def write_distribution(folder: Path, name: str, code: str, version: str = "1.0") -> None:
    """Make `name` importable and discoverable from `folder`, which must be on sys.path or PYTHONPATH.

    The plugin is called like the distribution; its module like it with underscores.
    """
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(dedent(code), encoding="utf-8")
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[exo]\n{name} = {module}\n")
