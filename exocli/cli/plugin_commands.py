"""The commands that plugins add, by name, remembered from one start to the next.

Finding plugins costs as much as the rest of `exo --help`. What was found is kept in a small file and
trusted while nothing it was found from has changed: the folders of sys.path (installing and removing
touches them), the plugins' own files, the config, and the switches in the environment. While a plugin
has a problem nothing is kept, so the warning stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exocli import config
from exocli.cli.render import Globals

_SWITCHES = ("EXO_PLUGINS", "EXO_NO_PLUGINS", "EXO_STRICT_PLUGINS")


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """`command` is "module:click_command"."""

    name: str
    help: str
    command: str
    distribution: str


def find(settings: Globals) -> dict[str, PluginCommand]:
    """All of them. Warns, once a process, of plugins with problems."""
    environment = _environment()
    kept = _read(environment)
    if kept is not None:
        return kept
    found, files = _ask_plugins(settings)
    if files is not None:
        _write({"environment": environment, "files": _stamps(files), "commands": list(_plain(found))})
    return found


def _ask_plugins(settings: Globals) -> tuple[dict[str, PluginCommand], list[str] | None]:
    from importlib.metadata import entry_points

    from exocli import plugins

    manager = plugins.manager()
    warn_of_problems(settings)
    found = {
        name: PluginCommand(name, r.spec.help, r.spec.command, r.distribution)
        for name, r in manager.commands.items()
    }
    if manager.problems:
        return found, None
    modules = (sys.modules.get(point.module) for point in entry_points(group=plugins.GROUP))
    return found, [str(m.__file__) for m in modules if m is not None and m.__file__]


_warned = False


def warn_of_problems(settings: Globals) -> None:
    global _warned
    from exocli import plugins

    if not _warned:
        _warned = True
        for problem in plugins.manager().problems:
            settings.warn(f"{problem}.".replace("..", "."))


# ----------------------------------------------------------------------------------------- the file


def _path() -> Path:
    return config.cache_dir("cli") / "commands.json"


def _stamps(paths: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[path] = Path(path).stat().st_mtime_ns
    return found


def _environment() -> dict[str, Any]:
    return {
        "python": sys.version,
        "folders": _stamps([*sys.path, str(config.config_path())]),
        "switches": [os.environ.get(name) for name in _SWITCHES],
    }


def _read(environment: dict[str, Any]) -> dict[str, PluginCommand] | None:
    try:
        kept = json.loads(_path().read_bytes())
        if kept["environment"] != environment or kept["files"] != _stamps(kept["files"]):
            return None
        return {row[0]: PluginCommand(*row) for row in kept["commands"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _plain(found: dict[str, PluginCommand]) -> Iterator[list[str]]:
    for one in found.values():
        yield [one.name, one.help, one.command, one.distribution]


def _write(data: dict[str, Any]) -> None:
    """Best effort: without the file the next start is slower, no more."""
    path = _path()
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(data), encoding="utf-8")
        part.replace(path)
