"""From the names on the command line and in the config to what the hub serves. No HTTP, no loading."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from exocli import config, names
from exocli.backend import ModelInfo
from exocli.cli import context, pulling
from exocli.cli.render import Globals
from exocli.errors import ExoError
from exocli.runtime.session import Session
from exocli.server.hub import Opener, Served
from exocli.types import to_json


def served(
    models: tuple[str, ...], backend: str | None, pairs: tuple[str, ...], settings: Globals, pull: bool
) -> list[Served]:
    """The models of `-m` (else all of the server behind the backend, else the default one), which must be
    here or be pulled now, then the config's `[models]`, which are looked for at first use. Raises what
    `exo run` would raise."""
    pulling.warn_of_strangers(settings)
    found: dict[str, Served] = {}
    for name in models or _behind(backend, pairs) or (None,):
        choice = context.choose(name, backend, pairs)
        path = pulling.ensure(choice, settings, yes=pull)
        shown = public_name(choice.model)
        found[shown] = _served(shown, choice, partial(_session, choice, path, settings))
    for one in _configured(settings):
        found.setdefault(one.name, one)
    return list(found.values())


def _behind(backend: str | None, pairs: tuple[str, ...]) -> tuple[str, ...]:
    """Of a backend that drives a server: all that the server has (a name with * cannot be opened)."""
    wanted = backend or config.get("backend")
    found = context.offered(str(wanted), pairs) if wanted is not None else ()
    return tuple(name for name in found if "*" not in name)


def public_name(name: str) -> str:
    """A path is shown by its last part: clients neither see nor give paths."""
    return Path(name).expanduser().absolute().name if names.is_path(name) else name


def _configured(settings: Globals) -> Iterator[Served]:
    for name in context.model_table():
        try:
            choice = context.choose(name)
        except ExoError as error:
            settings.warn(f"the config's model {name} is not served: {error.message}")
            continue

        def open_it(concurrency: int | None, choice: context.Choice = choice) -> Session:
            def never(*_: object) -> None:
                raise AssertionError("nobody was asked, so nothing is pulled")

            return _session(choice, context.ensure_model(choice, never, None), settings, concurrency)

        yield _served(name, choice, open_it)


def _session(choice: context.Choice, path: str, settings: Globals, concurrency: int | None) -> Session:
    return choice.session(path, debug=settings.debug, concurrency=concurrency)


def _served(name: str, choice: context.Choice, opener: Opener) -> Served:
    same = [choice.backend, choice.ref.kind, str(choice.ref), choice.options, choice.defaults]
    info = _info(choice)
    return Served(
        name=name,
        key=json.dumps(to_json(same), sort_keys=True, default=str),
        open=opener,
        backend=choice.backend,
        most=choice.spec.capabilities.max_concurrency,
        # by its files, else all that the backend could do
        tasks=(info.tasks if info is not None else ()) or choice.spec.capabilities.tasks,
        size=info.size if info is not None else 0,
        system=choice.ref.entry.get("system"),
    )


def _info(choice: context.Choice) -> ModelInfo | None:
    """What the backend knows of the model without opening it."""
    try:
        source = context.source_of(choice.spec)
        return source.show(choice.ref) if source is not None else None
    except Exception:  # a plugin's, or a model that is not here yet
        return None
