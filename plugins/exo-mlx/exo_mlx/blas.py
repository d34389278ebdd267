"""Opens a fast BLAS before MLX is imported: on Linux MLX's own wheel brings the reference one.

A library that is open already, with its symbols global, wins over the one that MLX names (facts: float32
matrix products become 50 times as fast). Call `prepare` first in a worker; it never fails, it reports.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from exo_mlx import elf_alias

_SYSTEM = ("libopenblasp.so.0", "libopenblas.so.0")
"""With threads of its own; then whatever the system calls OpenBLAS."""
_WHEEL = "scipy_openblas32"
_WHEEL_PREFIX = "scipy_"
_FUNCTIONS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
"""What MLX calls for matrix products; its LAPACK keeps the BLAS it came with."""
_GPU = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")
_PROBE_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A library that was tried and works (`paths`, to be opened in this order), or the reason why none.

    `prefix` goes before the names of its own functions.
    """

    library: str | None
    paths: tuple[str, ...] = ()
    prefix: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlasReport:
    """What `prepare` did. `library` is None where MLX goes on with its own; `reason` says why."""

    library: str | None
    threads: int = 0
    reason: str = ""


def prepare(cache_dir: Path, threads: int | None = None) -> BlasReport:
    """Choose and open a BLAS for this process; `threads` None = `default_threads()`.

    `cache_dir` keeps the alias library and the verdicts of earlier tries.
    """
    if "mlx.core" in sys.modules:
        return BlasReport(library=None, reason="MLX had been imported before.")
    choice = choose(cache_dir)
    if choice.library is None:
        return BlasReport(library=None, reason=choice.reason)
    count = threads or default_threads()
    os.environ["OPENBLAS_NUM_THREADS"] = str(count)  # read when it is opened: no more threads are started
    try:
        handles = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in choice.paths]
        getattr(handles[0], f"{choice.prefix}openblas_set_num_threads")(count)
    except (OSError, AttributeError) as error:
        return BlasReport(library=None, reason=f"{choice.library} cannot be opened: {error}.")
    return BlasReport(library=choice.library, threads=count)


def choose(cache_dir: Path) -> Choice:
    """The first library that works here; tries each new one in a child process, once."""
    if sys.platform != "linux":
        return Choice(library=None, reason="MLX uses the system's own BLAS here.")
    if any(_installed(name) for name in _GPU):
        return Choice(library=None, reason="MLX computes on the GPU.")
    reasons = []
    for name, paths, prefix in _candidates(cache_dir):
        reason = _verdict(paths, cache_dir)
        if reason is None:
            return Choice(library=name, paths=paths, prefix=prefix)
        reasons.append(f"{name} {reason}")
    tried = "; ".join(reasons) or "none is installed"
    return Choice(
        library=None,
        reason=f"no OpenBLAS ({tried}): install the system's libopenblas or pip's scipy-openblas32.",
    )


def default_threads() -> int:
    """One less than the cores this process may use (hyper-threads once, a container's share respected).

    OpenBLAS's threads wait for each other in a loop: with a thread on every core, one busy process
    beside them was measured to make each product 40 times as slow; one thread fewer costs a third.
    """
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    bounds = [usable, *(n for n in (_physical_cores(), _cpu_quota()) if n)]
    return max(1, min(bounds) - 1)


# ---------------------------------------------------------------------------------------- the libraries


def _candidates(cache_dir: Path) -> list[tuple[str, tuple[str, ...], str]]:
    """(name, paths, prefix of its functions): the wheel, which is the same everywhere, then the system's."""
    found: list[tuple[str, tuple[str, ...], str]] = []
    wheel = _wheel()
    if wheel is not None and (alias := _alias(wheel, cache_dir)) is not None:
        found.append(
            (f"scipy-openblas32 {metadata.version('scipy-openblas32')}", (str(wheel), alias), _WHEEL_PREFIX)
        )
    found.extend((name, (path,), "") for name in _SYSTEM if (path := _system_path(name)))
    return found


def _wheel() -> Path | None:
    """The library in the installed wheel, found without importing it."""
    spec = importlib.util.find_spec(_WHEEL)
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / "lib" / "libscipy_openblas.so"
        if path.is_file():
            return path
    return None


def _alias(wheel: Path, cache_dir: Path) -> str | None:
    """A library that gives the wheel's functions their plain names; None where it cannot be made."""
    machine = platform.machine()
    if machine not in elf_alias.MACHINES:
        return None
    aliases = {name: _WHEEL_PREFIX + name for name in _FUNCTIONS}
    content = elf_alias.build(aliases, wheel.name, machine)
    path = cache_dir / f"libblas-alias-{hashlib.sha256(content).hexdigest()[:12]}.so"
    try:
        if not path.is_file():
            cache_dir.mkdir(parents=True, exist_ok=True)
            _write_atomically(path, content)
    except OSError:
        return None
    return str(path)


def _system_path(name: str) -> str | None:
    """Where the dynamic linker finds `name`, from its cache in the usual folders; nothing is opened."""
    machine = platform.machine()
    for folder in (f"/usr/lib/{machine}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"):
        path = Path(folder, name)
        if path.exists():
            return str(path.resolve())
    return None


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


# ----------------------------------------------------------------------------------------- the verdict


def _verdict(paths: tuple[str, ...], cache_dir: Path) -> str | None:
    """None if the libraries work on this CPU, else what happened. Kept by path, time and CPU."""
    key = _key(paths)
    file = cache_dir / "blas.json"
    try:
        kept = json.loads(file.read_text())
    except (OSError, ValueError):
        kept = {}
    if isinstance(kept, dict) and key in kept:
        known = kept[key]
        return None if known is None else str(known)
    reason = _try(paths)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        _write_atomically(file, json.dumps({**kept, key: reason}, indent=1).encode())
    except (OSError, TypeError):  # a read-only home: it is tried again next time
        pass
    return reason


def _try(paths: tuple[str, ...]) -> str | None:
    probe = Path(__file__).with_name("blas_probe.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(probe), *paths],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"could not be tried ({type(error).__name__})"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"ended with signal {-done.returncode}: it is made for another CPU"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"does not work ({last[0].removeprefix('OSError: ')})" if last else "multiplies wrongly"


def _key(paths: tuple[str, ...]) -> str:
    parts = [_cpu()]
    for path in paths:
        stat = Path(path).stat()
        parts.append(f"{path}:{stat.st_mtime_ns}:{stat.st_size}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _cpu() -> str:
    """What the first processor says of itself: model and features."""
    wanted = ("model name", "flags", "CPU part", "CPU implementer", "Features")
    return "\n".join(line for line in _cpuinfo().partition("\n\n")[0].splitlines() if line.startswith(wanted))


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()


def _physical_cores() -> int | None:
    """Distinct (package, core) pairs; None where the system does not say."""
    pairs = set()
    for block in _cpuinfo().split("\n\n"):
        fields = dict(line.split(":", 1) for line in block.splitlines() if ":" in line)
        values = {name.strip(): value.strip() for name, value in fields.items()}
        if "core id" in values:
            pairs.add((values.get("physical id"), values["core id"]))
    return len(pairs) or None


def _cpu_quota() -> int | None:
    """Whole cores of a container's share (control groups, version 2); None without a bound."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


def _write_atomically(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)
