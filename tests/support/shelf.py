"""A backend whose models are files on a shelf: a real ModelSource that needs no network.

`tiny` can be pulled; a pull writes a part file piece by piece, resumes it, and hears its cancel token.
SHELF_PAUSE makes each piece wait for that many seconds or the cancel, whichever is first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from exocli import (
    Availability,
    BackendSpec,
    CancelToken,
    Check,
    ModelBroken,
    ModelInfo,
    ModelNotFound,
    ModelRef,
    hookimpl,
    models_dir,
)
from exocli.backend import ProgressFn

PIECE, PIECES = 100_000, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    depth: int = 3
    mode: str = "wide"
    loud: bool = False

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError("depth must not be negative")


class Shelf:
    @property
    def folder(self) -> Path:
        return models_dir() / "shelf"

    def models(self) -> Iterable[ModelInfo]:
        for path in sorted(self.folder.glob("*.shelf")):
            yield ModelInfo(name=path.stem, path=str(path), size=path.stat().st_size, source="the shelf")

    def aliases(self) -> Mapping[str, str]:
        return {"tiny": "A tiny model: it says nothing"}

    def _path(self, ref: ModelRef) -> Path:
        return Path(ref.name).expanduser() if ref.kind == "path" else self.folder / f"{ref.name}.shelf"

    def locate(self, ref: ModelRef) -> Path | None:
        path = self._path(ref)
        return path if path.exists() else None

    def accepts(self, ref: ModelRef) -> bool:
        if ref.kind == "path":
            return ref.name.endswith(".shelf") or ref.name.endswith(".gguf")
        return ref.name in ("tiny", "vendor:big") or self.locate(ref) is not None

    def show(self, ref: ModelRef) -> ModelInfo:
        path = self.locate(ref)
        if path is None:
            raise ModelNotFound(f"{ref} is not on the shelf.")
        return ModelInfo(
            name=ref.name, path=str(path), size=path.stat().st_size, source="the shelf", details={"layers": 3}
        )

    def download_size(self, ref: ModelRef) -> int | None:
        return PIECE * PIECES

    def pull(self, ref: ModelRef, progress: ProgressFn, cancel: CancelToken) -> ModelInfo:
        path = self._path(ref)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        stop = threading.Event()
        cancel.on_cancel(stop.set)
        with part.open("ab") as out:
            while out.tell() < PIECE * PIECES:
                cancel.raise_if_cancelled()
                out.write(b"x" * PIECE)
                out.flush()
                progress(out.tell(), PIECE * PIECES)
                stop.wait(float(os.environ.get("SHELF_PAUSE", "0")))
        part.rename(path)
        return self.show(ref)

    def remove(self, ref: ModelRef) -> int:
        info = self.show(ref)
        Path(info.path).unlink()
        return info.size

    def import_file(self, path: Path, name: str | None, progress: ProgressFn) -> ModelInfo:
        data = path.read_bytes()
        if not data.startswith(b"GGUF"):
            raise ModelBroken(f"{path} is not a GGUF file.")
        progress(len(data), len(data))
        ref = ModelRef(kind="builtin", name=name or path.stem)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(ref).write_bytes(data)
        return self.show(ref)


def probe() -> Availability:
    missing = os.environ.get("SHELF_MISSING")
    return Availability(
        ok=not missing, reason=missing or "", hint="build a shelf" if missing else "", rank=50
    )


def doctor() -> Iterable[Check]:
    yield Check(name="screws", text="loose", state="warning", hint="tighten them")


@hookimpl
def exo_backends() -> Iterable[BackendSpec]:
    yield BackendSpec(
        name="shelf",
        summary="Models on a shelf",
        api=1,
        protocol="stream",
        place="inline",
        open="exo_sample.engine:open_engine",
        open_options="tests.support.shelf:Options",
        probe="tests.support.shelf:probe",
        models="tests.support.shelf:Shelf",
        doctor="tests.support.shelf:doctor",
    )
