"""How much memory there is, in bytes, and whether a model fits.

Knows the operating system; knows no models' insides (caches.py and kv_budget.py do) and no requests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from exocli import OutOfMemory

OVERHEAD = 320 * 1024**2
"""Python, the libraries, the tokenizer and the activations of one chunk."""


def human(size: int) -> str:
    """`1.2 GB`, `540 MB`: decimal units, as disks and model cards count."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}" if size < 10 * factor else f"{size / factor:.0f} {unit}"
    return f"{size} B"


def available() -> int | None:
    """Bytes that this process may still take: the machine's and its control group's, whichever is less.

    None where the system does not say. On Apple silicon it is the working set Metal recommends.
    """
    if sys.platform == "darwin":
        return _metal()
    found = [value for value in (_meminfo(), *_cgroups()) if value is not None]
    return min(found) if found else None


def _metal() -> int | None:
    import mlx.core as mx  # here: the rest of this module is used without mlx

    recommended = mx.device_info().get("max_recommended_working_set_size")
    if recommended:
        return int(recommended) - int(mx.get_active_memory())
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _cgroups() -> list[int]:
    """What each enclosing control group (v2, then v1) leaves, page cache counted as free."""
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in own:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        v2 = not controllers
        root = Path("/sys/fs/cgroup") if v2 else Path("/sys/fs/cgroup/memory")
        limit, usage, cache = (
            ("memory.max", "memory.current", "inactive_file")
            if v2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root):
                break
            bound, used = _number(group / limit), _number(group / usage)
            if bound is not None and used is not None and bound < 1 << 60:
                left.append(bound - used + _stat(group / "memory.stat", cache))
    return left


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such group here, or "max"
        return None


def _stat(path: Path, name: str) -> int:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return next((int(value) for key, value in pairs if key == name), 0)
    except (OSError, ValueError):
        return 0


def fits(weights: int, free: int | None) -> bool:
    """Do `weights` bytes and what comes with every model fit into `free` bytes? Unknown counts as yes."""
    return free is None or weights + OVERHEAD <= free


def check(weights: int, free: int | None, name: str) -> None:
    """Raises OutOfMemory with the numbers if a model of `weights` bytes does not fit into `free`."""
    if not fits(weights, free):
        assert free is not None
        raise OutOfMemory(
            f"The model {name} needs {human(weights + OVERHEAD)} of memory and {human(max(free, 0))} are "
            "free: choose a smaller one, end other programs, or load it all the same with --force.",
            needed=weights + OVERHEAD,
            available=max(free, 0),
        )
