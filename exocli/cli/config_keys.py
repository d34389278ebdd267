"""Which keys config.toml has and what they take: checked when one is set, offered on Tab."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

import click

from exocli import config, options
from exocli.cli import params
from exocli.errors import UsageError
from exocli.options import is_secret

_Kind = type | tuple[type, ...]
_NAMED: Mapping[str, _Kind] = {"model": str, "backend": str, "system": str, "sampling": Mapping}
TOP: Mapping[str, _Kind] = {**_NAMED, "models": Mapping, "backends": Mapping, "plugins": Mapping}
"""The keys at the top of the file, and what each holds."""

_ENTRY: Mapping[str, _Kind] = {**_NAMED, "options": Mapping}


def hide_secrets(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: hide_secrets(inner, name) for name, inner in value.items()}
    return "…" if is_secret(key) and isinstance(value, str) else value


def check(key: str, text: str) -> Any:
    """The value to store for what was typed. Raises UsageError that says which keys or values there are."""
    if is_secret(key):
        raise UsageError(
            f"{key} is a secret, which others could read off a command line; write it into "
            f"{config.config_path()} or use its variable in the environment."
        )
    parts = key.split(".")
    head, rest = parts[0], parts[1:]
    if not all(parts) or head not in TOP:
        close = options.guess(head, TOP)
        raise UsageError(f'There is no setting "{key}"{close}; the first part is one of: {", ".join(TOP)}.')
    if head in ("model", "backend", "system"):
        if rest:
            raise UsageError(f'"{head}" is a setting without parts, so "{key}" is not one.')
        return _named(key, head, text)
    if head == "sampling":
        return _sampling(key, rest, text)
    if head == "models":
        return _model_entry(key, rest, text)
    if head == "backends":
        return _backend_option(key, rest, text)
    if rest != ["disabled"]:
        raise UsageError(f'There is no setting "{key}"; "plugins.disabled" takes names with commas between.')
    return list(options.parse(tuple[str, ...], text.strip("[]").replace('"', ""), key))


def _named(key: str, kind: str, text: str) -> str:
    """A model may be fetched later, a system prompt is free; a backend must be there."""
    if kind != "system" and not text:
        raise UsageError(f'{key} cannot be empty; "exo config unset {key}" takes it back.')
    if kind == "backend":
        from exocli import plugins

        plugins.backend(text)
    return text


def _need(key: str, rest: list[str], count: int, form: str) -> None:
    if len(rest) != count:
        raise UsageError(f'"{key}" is not a setting; it has the form {form}.')


def _field(cls: type[Any], key: str, name: str, text: str) -> Any:
    hints = {f.name: get_type_hints(cls)[f.name] for f in fields(cls)}
    if name not in hints:
        raise UsageError(f'There is no setting "{key}"; there are: {", ".join(sorted(hints))}.')
    value = options.parse(hints[name], text, key)
    return list(value) if isinstance(value, tuple) else value


def _sampling(key: str, rest: list[str], text: str) -> Any:
    from exocli.types import Sampling

    _need(key, rest, 1, "sampling.NAME")
    value = _field(Sampling, key, rest[0], text)
    params.require_sampling(key, rest[0], value)
    return value


def _model_entry(key: str, rest: list[str], text: str) -> Any:
    form = "models.NAME.model, .backend, .system, .options.KEY or .sampling.NAME"
    if len(rest) == 2 and rest[1] in ("model", "backend", "system"):
        return _named(key, rest[1], text)
    if len(rest) == 3 and rest[1] == "sampling":
        return _sampling(key, rest[2:], text)
    if len(rest) == 3 and rest[1] == "options":
        return _guess(text)
    raise UsageError(f'"{key}" is not a setting; it has the form {form}.')


def _backend_option(key: str, rest: list[str], text: str) -> Any:
    from exocli import plugins
    from exocli.backend import load_object

    _need(key, rest, 2, "backends.NAME.OPTION")
    backend, name = rest
    if name == "python":
        return text
    spec = plugins.backend(backend)
    if spec.open_options is None:
        raise UsageError(f'The backend {backend} takes no options, so not "{name}".')
    return _field(load_object(spec.open_options), key, name, text)


def _guess(text: str) -> Any:
    """TOML's own reading (`true`, `3`, `["a"]`), else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


# ----------------------------------------------------------------------------------- the whole file


def settings() -> Mapping[str, Any]:
    """`config.load()` for those who act on it. Raises UsageError for the first of `faults`."""
    for fault in faults():
        raise UsageError(fault)
    return config.load()


def faults() -> Iterator[str]:
    """What in the file nothing reads, or is no text or table where one belongs: a sentence each. What a
    backend's options and `sampling` hold is judged where it is used."""
    where, table = config.config_path(), config.load()
    for fault in _faults(table):
        yield f"{where}: {fault}"


def _faults(table: Mapping[str, Any]) -> Iterator[str]:
    yield from _misfits(table, TOP, "")
    models, backends = _table(table, "models"), _table(table, "backends")
    for name, entry in models.items():
        if isinstance(entry, Mapping):
            yield from _misfits(entry, _ENTRY, f"models.{name}.")
        else:
            yield _not_a(Mapping, f"models.{name}")
    for name, section in backends.items():
        if not isinstance(section, Mapping):
            yield _not_a(Mapping, f"backends.{name}")
        elif not isinstance(section.get("python", ""), str):
            yield _not_a(str, f"backends.{name}.python")
    yield from _misfits(_table(table, "plugins"), {"disabled": (list, str)}, "plugins.")


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    return found if isinstance(found, Mapping) else {}


def _misfits(table: Mapping[str, Any], kinds: Mapping[str, _Kind], above: str) -> Iterator[str]:
    for key, value in table.items():
        if key not in kinds:
            close, known = options.guess(key, kinds), ", ".join(kinds)
            yield f'There is no setting "{above}{key}"{close}; there are: {known}.'
        elif not isinstance(value, kinds[key]):
            yield _not_a(kinds[key], f"{above}{key}")


def _not_a(kind: _Kind, key: str) -> str:
    return f"{key} must be {'text in quotes' if kind is str else 'a table' if kind is Mapping else 'a list'}."


def strangers() -> Iterator[str]:
    """Sections of backends that are not installed, as a plugin's may be, but are called nearly like one."""
    from exocli import plugins

    installed = plugins.manager().backends
    for name in _table(config.load(), "backends"):
        if name not in installed and (close := options.guess(name, installed)):
            yield f"{config.config_path()}: nothing reads backends.{name}, as no backend is called so{close}"


# --------------------------------------------------------------------------------------- completion


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def complete_set(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys that are set."""
    return [key for key in _leaves(config.load()) if key.startswith(incomplete)]


def complete_known(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys that can be set without inventing a name."""
    from exocli import plugins
    from exocli.backend import load_object
    from exocli.types import Sampling

    keys = ["model", "backend", "system", "plugins.disabled", *_leaves(config.load())]
    keys += [f"sampling.{f.name}" for f in fields(Sampling)]
    for name, registered in plugins.manager().backends.items():
        if registered.spec.open_options is not None:
            keys += [f"backends.{name}.{f.name}" for f in fields(load_object(registered.spec.open_options))]
    return [key for key in dict.fromkeys(keys) if key.startswith(incomplete)]
