"""Where things live and what the user has set. Reads config.toml once; writes it keeping comments."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from exocli.errors import UsageError


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


def offline() -> bool:
    """EXO_OFFLINE forbids the network; the hub's own switch counts too."""
    return any(os.environ.get(n, "").lower() in ("1", "true", "yes") for n in ("EXO_OFFLINE", "HF_HUB_OFFLINE"))


@cache
def _read(path: Path, _mtime: int) -> Mapping[str, Any]:
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
    except OSError:
        return {}
    return _read(path, stamp)


def get(key: str, default: Any = None) -> Any:
    """A dotted key of the config."""
    value: Any = load()
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value
