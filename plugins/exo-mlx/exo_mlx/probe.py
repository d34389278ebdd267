"""Is this backend usable here, and what should be known of the machine. Fast, offline, imports no mlx."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from exocli import Availability, Check, cache_dir

RANK = 50
"""Among backends that could run a model, this machine's own comes before a ring's or a server's."""


def probe() -> Availability:
    """Is MLX installed, with the library that it needs on Linux (`mlx` alone lacks libmlx.so there)."""
    if importlib.util.find_spec("mlx") is None or importlib.util.find_spec("mlx_lm") is None:
        return Availability(ok=False, reason="mlx or mlx-lm is not installed", hint="pip install mlx mlx-lm")
    if sys.platform == "linux" and not _linux_library():
        return Availability(
            ok=False,
            reason="mlx has no library for this machine",
            hint='pip install "mlx[cpu]", or "mlx[cuda12]" for an NVIDIA GPU',
        )
    return Availability(ok=True, rank=RANK)


def _linux_library() -> str | None:
    for name in ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "mlx-cuda"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return None


def checks() -> Iterable[Check]:
    """For `exo doctor`: versions, the device's library, the BLAS and its threads, the free memory."""
    from exo_mlx import memory

    for name in ("mlx", "mlx-lm"):
        yield Check(name=name, text=version(name))
    if sys.platform == "linux":
        library = _linux_library()
        state: Literal["ok", "problem"] = "ok" if library else "problem"
        yield Check(name="mlx library", text=library or "missing", state=state, hint=probe().hint)
    yield _blas()
    free = memory.available()
    yield Check(name="free memory", text=memory.human(free) if free is not None else "unknown")


def _blas() -> Check:
    from exo_mlx import blas

    choice = blas.choose(cache_dir("mlx"))
    if choice.library is not None:
        return Check(name="blas", text=f"{choice.library}, {blas.default_threads()} thread(s)")
    if sys.platform != "linux" or "GPU" in choice.reason:
        return Check(name="blas", text=choice.reason)
    return Check(
        name="blas",
        text=f"MLX's own, which is many times slower: {choice.reason}",
        state="warning",
        hint="pip install scipy-openblas32, or the system's OpenBLAS (Debian: libopenblas0-pthread)",
    )
