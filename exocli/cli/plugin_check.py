"""What `exo plugins check` finds beyond what loading found: every name a spec holds, imported and tried."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import click

from exocli import plugins
from exocli.backend import Availability, BackendSpec, Capabilities, load_object
from exocli.cli.context import reason_of

_CALLED = {"open": 1, "probe": 0, "models": 0, "launch": 2, "doctor": 0}
"""The functions a BackendSpec names, and how many arguments each is called with."""

_SOURCE = ("models", "aliases", "locate", "accepts", "show", "download_size", "pull", "remove", "import_file")


def problems_of(plugin: str, distribution: str) -> list[str]:
    """One sentence each, for what this plugin registered."""
    found = plugins.manager()
    problems: list[str] = []
    for name, backend in found.backends.items():
        if (backend.plugin, backend.distribution) == (plugin, distribution):
            problems += (f'backend "{name}": {text}' for text in _backend(backend.spec))
    for name, command in found.commands.items():
        if (command.plugin, command.distribution) == (plugin, distribution):
            problems += (f'command "{name}": {text}' for text in _command(command.spec.command))
    for name, route in found.routes.items():
        if (route.plugin, route.distribution) == (plugin, distribution):
            _, why = _load(route.spec.routes)
            problems += [f'routes "{name}": {why}'] if why else []
    return problems


def _load(reference: str) -> tuple[Any, str]:
    try:
        return load_object(reference), ""
    except BaseException as error:  # a plugin must not end the program that looks at it
        return None, f"{reference} cannot be imported ({reason_of(error)})"


def _backend(spec: BackendSpec) -> Iterator[str]:
    hints = get_type_hints(BackendSpec)
    for field in ("protocol", "place"):
        if getattr(spec, field) not in get_args(hints[field]):
            yield f'{field} is "{getattr(spec, field)}", not one of {", ".join(get_args(hints[field]))}'
    if spec.protocol == "step" and spec.place == "inline":
        yield "a step engine runs in a worker, not inline"
    if not isinstance(spec.capabilities, Capabilities):
        yield "capabilities is not a Capabilities"
    for field, count in _CALLED.items():
        reference = getattr(spec, field)
        if reference is None:
            continue
        target, why = _load(reference)
        if why:
            yield why
        elif not callable(target):
            yield f"{reference} is not a function"
        elif not _takes(target, count):
            yield f"{reference} must take {count} argument{'' if count == 1 else 's'}"
        else:
            yield from _tried(field, reference, target)
    for field in ("open_options", "request_options"):
        reference = getattr(spec, field)
        if reference is not None:
            target, why = _load(reference)
            yield from [why] if why else _options(reference, target)


def _takes(target: Any, count: int) -> bool:
    try:
        inspect.signature(target).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # written in C, says nothing of its arguments
        return True
    return True


def _tried(field: str, reference: str, target: Any) -> Iterator[str]:
    if field not in ("probe", "models"):
        return
    try:
        answer = target()
    except BaseException as error:
        yield f"{reference} fails ({reason_of(error)})"
        return
    if field == "probe" and not isinstance(answer, Availability):
        yield f"{reference} answers a {type(answer).__name__}, not an Availability"
    if field == "models":
        missing = [name for name in _SOURCE if not callable(getattr(answer, name, None))]
        if missing:
            yield f"what {reference} answers lacks {', '.join(missing)}"


def _options(reference: str, target: Any) -> Iterator[str]:
    if not (isinstance(target, type) and is_dataclass(target)):
        yield f"{reference} is not a dataclass"
        return
    if not target.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        yield f"{reference} is not a frozen dataclass"
    try:
        get_type_hints(target)
    except Exception as error:
        yield f"the annotations of {reference} cannot be read ({reason_of(error)})"


def _command(reference: str) -> Iterator[str]:
    target, why = _load(reference)
    if why:
        yield why
    elif not isinstance(target, click.Command):
        yield f"{reference} is not a click command"
