"""The models of servers: which name is meant, and what was seen where, kept for lists and for Tab.

The cache is one small JSON file; nothing here uses the network.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from exocli import ModelInfo, ModelNotFound, cache_dir

BACKEND = "remote"
"""The backend's name, which also stands for "whatever model the server offers first"."""
MOST = 12


def pick(wanted: str, names: Sequence[str], url: str, any_model: bool = False) -> str:
    """The server's own name for `wanted`. Raises ModelNotFound that says which names exist.

    A server that lists nothing cannot be checked: what was asked for is sent as it is.
    """
    plain = [name for name in names if "*" not in name]
    if wanted in ("", BACKEND) and wanted not in names:
        if not plain and names:
            raise ModelNotFound(f"{url} names no model by itself; choose one with -m: {listed(names)}.")
        return plain[0] if plain else "default"
    if not names or any_model:
        return wanted
    tails = [name for name in plain if name.rpartition("/")[2] == wanted]
    exact = [n for n in (wanted, f"{wanted}:latest", wanted.removesuffix(":latest")) if n in names]
    if exact:
        return exact[0]
    if len(tails) == 1:
        return tails[0]
    if any("*" in name and fnmatchcase(wanted, name) for name in names):
        return wanted
    close = get_close_matches(wanted, plain, n=1)
    guess = f' (did you mean "{close[0]}"?)' if close else ""
    raise ModelNotFound(f'{url} has no model "{wanted}"{guess}; it has: {listed(names)}.', names=list(names))


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


# --------------------------------------------------------------------------------------- the cache


def _file(folder: Path) -> Path:
    return folder / "servers.json"


def remember(folder: Path, url: str, names: Sequence[str], facts: Mapping[str, str]) -> None:
    """Keep what a server listed. A cache that cannot be written is no reason to fail."""
    known = dict(seen(folder))
    known[url] = {"models": list(names), "at": time.time(), **facts}
    path = _file(folder)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(known), encoding="utf-8")
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def seen(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """By url: {"models": […], "dialect": …, "at": …}; {} where nothing was seen yet."""
    try:
        data = json.loads(_file(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {url: row for url, row in data.items() if isinstance(row, dict)}


class RemoteCatalog:
    """See `Catalog` in exocli for what each method promises."""

    def models(self) -> Iterable[ModelInfo]:
        for url, row in seen(cache_dir(BACKEND)).items():
            facts = {key: value for key, value in row.items() if key not in ("models", "at")}
            for name in row.get("models", ()):
                yield ModelInfo(name=str(name), path=url, size=0, source=url, details=facts)

    def ask(self, options: Any) -> Sequence[str]:
        from exo_remote.opening import ask  # here: it needs httpx, and Tab comes through this module

        return ask(options, cache_dir(BACKEND))


def catalog() -> RemoteCatalog:
    """The backend's catalog (`BackendSpec.catalog`)."""
    return RemoteCatalog()
