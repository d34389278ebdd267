"""What one rank tells the others before anything heavy: versions, model, memory, cores, device.

Also the judgement over all of them together. Runs on every rank; imports mlx only to ask for the device.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from exocli import Unavailable

from exo_mlx import memory
from exo_ring import model_files
from exo_ring.plan import Machine

_COMPARED = ("python", "exocli", "mlx", "mlx-lm")


def versions() -> dict[str, str]:
    """Python's major.minor, and the packages whose wire or numbers must agree."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in _COMPARED[1:]:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def collect(folder: Path | None, data: Mapping[str, Any], cpu_dtype: str) -> dict[str, Any]:
    """This rank's facts, as plain data. `folder` None = the model is not here; `data` is WorkerSpec.data."""
    import mlx.core as mx

    on_cpu = mx.default_device() == mx.cpu
    return {
        "host": data["seats"][data["rank"]]["host"],
        "pid": os.getpid(),
        "versions": versions(),
        "view": data["view"],
        "model": model_files.fingerprint(folder) if folder is not None else None,
        "total": _total_memory(),
        "available": memory.available(),
        "cores": _cores(),
        "ranks": data["local_ranks"],
        "float32": on_cpu and cpu_dtype != "keep",
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _total_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def machine(facts: Mapping[str, Any]) -> Machine:
    return Machine(
        host=facts["host"],
        total=facts["total"],
        available=facts["available"],
        cores=facts["cores"],
        ranks=facts["ranks"],
        float32=facts["float32"],
        latency_s=facts.get("latency_s"),
    )


def problems(everyone: Sequence[Mapping[str, Any]], model: str) -> list[str]:
    """What keeps these ranks from working together, one sentence each; [] = nothing."""
    found = []
    first = everyone[0]
    for rank, facts in enumerate(everyone):
        who = f"Rank {rank} on {facts['host']}"
        for name in _COMPARED:
            mine, theirs = first["versions"].get(name), facts["versions"].get(name)
            if mine != theirs:
                found.append(
                    f"{who} has {name} {theirs}, rank 0 on {first['host']} has {mine}: install one version."
                )
        if facts["view"] != first["view"]:
            found.append(f"{who} was given another ring than rank 0: start them all from one hostfile.")
        if facts["model"] is None:
            found.append(f'{who} does not have the model {model}: run "exo models pull {model}" there.')
        elif first["model"] is not None and facts["model"] != first["model"]:
            found.append(f"{who} has another {model} than rank 0 on {first['host']}: fetch it anew there.")
    return found


def check(everyone: Sequence[Mapping[str, Any]], model: str) -> None:
    """Raises Unavailable with every problem."""
    found = problems(everyone, model)
    if found:
        raise Unavailable(" ".join(found))
