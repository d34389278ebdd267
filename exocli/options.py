"""Options by name: text or TOML values → an instance of a backend's frozen dataclass.

What `-o KEY=VALUE`, `[backends.NAME]` and a model's `options` have in common. The dataclass's annotations
are the schema: bool, int, float, str, Literal, X | None, and tuple[X, ...] written with commas.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from exocli.errors import UsageError

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


def split_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """`["a=1", "b=x=y"]` → `{"a": "1", "b": "x=y"}`; the last of a key wins. Raises UsageError."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f'"{pair}" is not of the form KEY=VALUE.')
        found[key.strip().replace("-", "_")] = value
    return found


def is_secret(key: str) -> bool:
    """`api_key`, `backends.x.token` and the like: not shown, and not taken from a command line."""
    name = key.rpartition(".")[2].lower().replace("-", "_")
    return name in ("key", "token", "secret", "password") or name.endswith(
        ("_key", "_token", "_secret", "_password")
    )


def build(cls: type[Any] | None, layers: Iterable[Mapping[str, Any]], owner: str) -> Any:
    """An instance of `cls` from its defaults and the layers, later ones winning; None if `cls` is None.

    `owner` ("the backend mlx") is for the error. Raises UsageError that lists the valid keys or values.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    values = _values(cls, merged, owner, "The option ")
    if cls is None:
        return None
    for field in fields(cls):
        if field.name not in values and _required(field):
            subject = f"{owner[0].upper()}{owner[1:]}"
            raise UsageError(f"{subject} needs the option {field.name}: give -o {field.name}=VALUE.")
    try:
        return cls(**values)
    except ValueError as error:  # what __post_init__ found; annotations say types, not ranges
        raise UsageError(f"{error}".rstrip(".") + ".") from error


def read(cls: type[Any] | None, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A table of the config as a layer for `build`. Raises UsageError that begins with `where`, the file and
    the table's key, for what this table alone makes impossible."""
    values = _values(cls, table, where, f"{where}.")
    if cls is not None and all(f.name in values for f in fields(cls) if _required(f)):
        try:
            cls(**values)
        except ValueError as error:
            raise UsageError(f"{where}: {error}".rstrip(".") + ".") from error
    return values


def _values(cls: type[Any] | None, table: Mapping[str, Any], owner: str, subject: str) -> dict[str, Any]:
    known = {f.name for f in fields(cls)} if cls is not None else set()
    for key in table:
        if key not in known:
            raise UsageError(_unknown(key, known, owner))
    hints = get_type_hints(cls) if cls is not None else {}
    return {key: _value(hints[key], value, f"{subject}{key}") for key, value in table.items()}


def parse(hint: Any, value: Any, key: str) -> Any:
    """One value for a field annotated `hint`: text from a command line, or what TOML made of it.

    Raises UsageError naming the key and what it takes.
    """
    return _value(hint, value, f"The option {key}")


def _value(hint: Any, value: Any, subject: str) -> Any:
    try:
        return _parse(hint, value)
    except ValueError:
        shown = value if isinstance(value, str) else repr(value)
        raise UsageError(f'{subject} takes {describe(hint)}, not "{shown}".') from None


def describe(hint: Any) -> str:
    """What a field takes, in words: `auto|float32|keep`, `a whole number`, `numbers with commas between`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "|".join(str(arg) for arg in args)
    if _is_union(origin):
        words = [describe(arg) for arg in args if arg is not types.NoneType]
        return " or ".join([*words, "none"] if types.NoneType in args else words)
    if origin is tuple:
        return f"a list with commas ({describe(args[0])}, …)"
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(hint, "text")


def choices(hint: Any) -> list[str]:
    """The values a completion can offer for a field."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return [str(arg) for arg in args]
    if _is_union(origin):
        return [choice for arg in args for choice in choices(arg)]
    return ["true", "false"] if hint is bool else []


def _parse(hint: Any, value: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if _is_union(origin):
        if types.NoneType in args and (value is None or value == "none"):
            return None
        for arg in args:
            if arg is not types.NoneType:
                try:
                    return _parse(arg, value)
                except ValueError:
                    continue
        raise ValueError(value)
    if origin is Literal:
        for arg in args:
            same = value == arg and type(value) is type(arg)
            if same or (isinstance(value, str) and value == str(arg)):
                return arg
        raise ValueError(value)
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            raise ValueError(value)
        return tuple(_parse(args[0], part.strip() if isinstance(part, str) else part) for part in parts)
    return _scalar(hint, value)


def _scalar(hint: Any, value: Any) -> Any:
    if hint is bool:
        if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
            return value.lower() in _TRUE
        if isinstance(value, bool):
            return value
    elif hint is int:
        if isinstance(value, str) or type(value) is int:
            return int(value)
    elif hint is float:
        if isinstance(value, str) or type(value) in (int, float):
            return float(value)
    elif isinstance(value, str):
        return value
    raise ValueError(value)


def _is_union(origin: Any) -> bool:
    return origin is Union or origin is types.UnionType


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _unknown(key: str, known: Collection[str], owner: str) -> str:
    if not known:
        return f'{owner[0].upper()}{owner[1:]} takes no options, so not "{key}".'
    listed = ", ".join(sorted(known))
    return f'{owner[0].upper()}{owner[1:]} has no option "{key}"{guess(key, known)}; there are: {listed}.'


def guess(word: str, known: Collection[str]) -> str:
    """` (did you mean chunk?)`, or nothing where no known word is like it."""
    close = get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def as_dict(built: Any) -> dict[str, Any]:
    """An options instance as `{name: value}`; {} for None."""
    return {f.name: getattr(built, f.name) for f in fields(built)} if built is not None else {}
