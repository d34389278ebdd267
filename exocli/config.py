"""Where things live and what the user has set. Reads config.toml once; writes it keeping comments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exocli.errors import UsageError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def home() -> Path | None:
    """EXO_HOME, if set: then everything lives below it."""
    value = os.environ.get("EXO_HOME")
    return Path(value).expanduser().absolute() if value else None


def _platform_dir(kind: str) -> Path:
    import platformdirs

    return Path(getattr(platformdirs, f"user_{kind}_dir")("exo", appauthor=False))


def config_path() -> Path:
    root = home()
    return (root if root else _platform_dir("config")) / "config.toml"


def data_dir(name: str) -> Path:
    """A folder for state (`models`, `conversations`, `logs`, `run`); not made here."""
    root = home()
    return (root if root else _platform_dir("data")) / name


def models_dir() -> Path:
    """Conversions that backends make of models; hub models stay in the Hugging Face cache."""
    return data_dir("models")


def cache_dir(name: str) -> Path:
    """A folder of things that can be made again."""
    root = home()
    return (root / "cache" if root else _platform_dir("cache")) / name


def switch(name: str) -> bool:
    """A variable of the environment that is on or off, off if it is not set. Raises UsageError for others:
    one who writes EXO_OFFLINE=ture does not want the network."""
    value = os.environ.get(name, "").strip().lower()
    if value not in ("1", "true", "yes", "on", "0", "false", "no", "off", ""):
        raise UsageError(f'The variable {name} is "{value}": give it 1 or 0.')
    return value in ("1", "true", "yes", "on")


def offline() -> bool:
    """EXO_OFFLINE forbids the network; the hub's own switch counts too, by the hub's own rule."""
    return switch("EXO_OFFLINE") or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


@cache
def _read(path: Path, _mtime: int) -> Mapping[str, Any]:
    import tomllib  # here: most starts find no file, and `exo --help` counts milliseconds

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}. Correct or remove it.") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error


def load() -> Mapping[str, Any]:
    """The parsed config.toml ({} if there is none). Raises UsageError with line and reason."""
    path = config_path()
    try:
        stamp = path.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    return _read(path, stamp)


def get(key: str, default: Any = None) -> Any:
    """A dotted key of the config."""
    value: Any = load()
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


# ------------------------------------------------------------------------------------------- writing


def text(hide: Callable[[str], bool] = lambda key: False) -> str:
    """The file as it stands, comments and all, with the string values of keys that `hide` picks replaced."""
    load()  # for its errors
    document = _document()
    _mask(document, hide)
    return document.as_string()


def set_value(key: str, value: Any) -> None:
    """Set a dotted key, keeping comments and order. Raises UsageError where a part is not a table."""
    *tables, name = key.split(".")
    with _editing() as document:
        table: Any = document
        for part in tables:
            if part not in table:
                import tomlkit

                table[part] = tomlkit.table(is_super_table=part in ("models", "backends"))
            table = table[part]
            if not isinstance(table, MutableMapping):
                raise UsageError(f'"{part}" in {config_path()} is not a table, so "{key}" cannot be set.')
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value


def unset(key: str) -> bool:
    """Remove a dotted key; False if it was not there."""
    *tables, name = key.split(".")
    with _editing() as document:
        table: Any = document
        for part in tables:
            table = table.get(part) if isinstance(table, MutableMapping) else None
        if not isinstance(table, MutableMapping) or name not in table:
            return False
        del table[name]
    return True


def _document() -> TOMLDocument:
    import tomlkit

    try:
        return tomlkit.parse(config_path().read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return tomlkit.document()


def _mask(table: MutableMapping[str, Any], hide: Callable[[str], bool]) -> None:
    for key, value in table.items():
        if isinstance(value, MutableMapping):
            _mask(value, hide)
        elif isinstance(value, str) and hide(key):
            table[key] = "…"


@contextmanager
def _editing() -> Iterator[TOMLDocument]:
    """The document, written back if the block ends well: whole or not at all, one writer at a time.

    The file may hold keys of servers, so only its owner may read it.
    """
    import fcntl

    path = config_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name("config.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            load()  # for its errors: what cannot be read is not overwritten
            document = _document()
            before = document.as_string()
            yield document
            after = document.as_string()
            if after != before:
                target = path.resolve()  # a link into someone's dotfiles stays a link
                part = target.with_name(f"{target.name}.{os.getpid()}")
                part.touch(mode=0o600)
                part.write_text(after, encoding="utf-8")
                part.replace(target)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{path} cannot be written: {reason}; EXO_HOME names another folder.") from error
