"""`exo models`: what is on this machine, and bringing, showing and removing it.

Only asks backends' model sources; knows no registry, no format and no folder layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from exocli.backend import ModelInfo, ModelRef, ModelSource
from exocli.cli import context, render
from exocli.cli.params import F, backend_option, complete_model, json_option, option
from exocli.cli.render import Globals, pass_globals, size_text
from exocli.errors import ModelNotFound, UsageError


@click.group()
def models() -> None:
    """List, fetch, look at and remove models."""


def _argument(name: str = "name", **more: Any) -> Callable[[F], F]:
    return click.argument(name, shell_complete=complete_model, **more)


def _find(name: str, backend: str | None) -> tuple[ModelRef, ModelSource]:
    """The reference and the source of the backend that opens it. Raises ModelNotFound, Unavailable."""
    ref = context.resolve(name, backend)
    registered, _ = context.choose_backend(ref, backend)
    source = context.source_of(registered.spec)
    if source is None:
        raise UsageError(f"The backend {registered.name} keeps no models of its own.")
    return ref, source


@models.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the models that are on this machine, and those that can be pulled by a short name."""
    rows = _rows()
    if as_json:
        render.print_json(rows)
        return
    backends: dict[tuple[str, ...], list[str]] = {}  # one line a model, whoever opens it
    for r in rows:
        backends.setdefault((r["name"], _where(r), _for(r["tasks"]), r["source"]), []).append(r["backend"])
    table = [[name, size, use, ", ".join(who), source] for (name, size, use, source), who in backends.items()]
    render.print_table(["NAME", "SIZE", "FOR", "BACKEND", "FROM"], table)


def _for(tasks: Sequence[str]) -> str:
    """What a model is for, in a word: one that chats can complete a text as well."""
    first = next(iter(tasks), "")
    return {"complete": "text", "embed": "embeddings", "image": "images"}.get(first, first)


def _where(row: dict[str, Any]) -> str:
    if row["here"]:
        return size_text(row["size"])
    return "on a server" if row["backend"] in context.catalogs() else "not pulled"


def _rows() -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    found = context.sources()
    for backend, source in found.items():
        for info in source.models():
            rows[backend, info.name] = {**_plain(info), "backend": backend, "here": True}
    for backend, source in found.items():
        for name, text in source.aliases().items():
            absent: dict[str, Any] = {
                "name": name,
                "path": None,
                "size": 0,
                "source": text,
                "backend": backend,
                "here": False,
                "tasks": [],
            }
            rows.setdefault((backend, name), absent)
    for backend, catalog in context.catalogs().items():
        for info in catalog.models():
            rows[backend, info.name] = {**_plain(info), "path": None, "backend": backend, "here": False}
    for name, entry in context.model_table().items():
        target, backend = str(entry.get("model", name)), str(entry.get("backend", ""))
        alias: dict[str, Any] = {
            "name": name,
            "path": None,
            "size": 0,
            "source": f"alias of {target}",
            "backend": backend,
            "tasks": [],
        }
        twin = next((row for (_, other), row in rows.items() if other == target), None)
        same = ("path", "size", "here", "backend", "tasks")
        seen = {key: twin[key] for key in same} if twin else {"here": False}
        rows["", name] = {**alias, **seen, **({"backend": backend} if backend else {})}
    return [rows[key] for key in sorted(rows, key=lambda key: (key[1], key[0]))]


def _plain(info: ModelInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "path": info.path,
        "size": info.size,
        "source": info.source,
        "details": dict(info.details),
        "tasks": list(info.tasks),
    }


@models.command()
@_argument()
@backend_option
@json_option
@pass_globals
def pull(settings: Globals, name: str, backend: str | None, as_json: bool) -> None:
    """Fetch a model, or finish a fetch that was broken off."""
    from exocli import config
    from exocli.cli import pulling

    ref, source = _find(name, backend)
    if ref.kind == "path":
        raise UsageError(
            f'{name} is a path, and is used where it is; "exo models import" converts a GGUF file.'
        )
    if config.offline() and source.locate(ref) is None:
        raise ModelNotFound(f"{ref} is not on this machine, and EXO_OFFLINE forbids fetching it.")
    info = pulling.pull(source, ref, settings)
    if as_json:
        render.print_json(_plain(info))
    else:
        settings.note(f"{info.name} is ready: {size_text(info.size)} in {info.path}")


@models.command()
@_argument()
@backend_option
@json_option
def show(name: str, backend: str | None, as_json: bool) -> None:
    """Show what is known about a model that is on this machine."""
    ref, source = _find(name, backend)
    info = source.show(ref)
    if as_json:
        render.print_json(_plain(info))
        return
    facts = {"name": info.name, "path": info.path, "size": size_text(info.size), "source": info.source}
    facts |= {"for": _for(info.tasks)} if info.tasks else {}
    for key, value in {**facts, **info.details}.items():
        click.echo(f"{key.replace('_', ' ')}: {value}")


@models.command()
@_argument("names", nargs=-1, required=True)
@backend_option
@option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_globals
def rm(settings: Globals, names: tuple[str, ...], backend: str | None, yes: bool, as_json: bool) -> None:
    """Remove models from this machine."""
    removed = []
    for name in names:
        ref, source = _find(name, backend)
        if ref.kind == "path":
            raise UsageError(f"{name} is a path; what exo did not fetch it does not remove.")
        info = source.show(ref)
        ask = render.asker(default=False)
        if not yes and ask is not None and not ask(f"Remove {info.name} ({size_text(info.size)})?"):
            continue
        freed = source.remove(ref)
        removed.append({"name": info.name, "freed": freed})
        settings.note(f"Removed {info.name}: {size_text(freed)} freed")
    if as_json:
        render.print_json(removed)


@models.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@option("--name", metavar="NAME", help="What to call it; by default after the file.")
@backend_option
@json_option
@pass_globals
def import_(settings: Globals, path: Path, name: str | None, backend: str | None, as_json: bool) -> None:
    """Convert a model file (GGUF) once, so that it opens fast from then on."""
    from exocli.cli import pulling

    path = path.expanduser()
    if not path.exists():
        raise ModelNotFound(f"There is no file {path}.")
    _, source = _find(str(path.absolute()), backend)
    with pulling.watching(f"Converting {path.name}", settings) as progress:
        info = source.import_file(path.absolute(), name, progress)
    if as_json:
        render.print_json(_plain(info))
    else:
        settings.note(f"{info.name} is ready: {size_text(info.size)} in {info.path}")
