"""`exo backends`: every backend that plugins offer, whether it works here, and what it can do."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import click

from exocli import options, plugins
from exocli.backend import BackendSpec, Capabilities, load_object
from exocli.cli import context, render
from exocli.cli.params import json_option
from exocli.cli.plugin_commands import warn_of_problems
from exocli.cli.render import Globals, pass_globals


@click.command()
@json_option
@pass_globals
def backends(settings: Globals, as_json: bool) -> None:
    """What can run models here, and whether it works.

    With -v also what each can do, and the options that -o takes.
    """
    warn_of_problems(settings)
    rows = [_row(name, one) for name, one in plugins.manager().backends.items()]
    if as_json:
        render.print_json(rows)
        return
    table = [
        [row["name"], row["state"], f"{row['distribution']} {row['version']}", row["summary"]] for row in rows
    ]
    render.print_table(["NAME", "STATE", "FROM", "WHAT"], table)
    for row in rows:
        if row["state"] != "available":
            hint = f" {row['hint']}" if row["hint"] else ""
            click.echo(f"\n{row['name']} is not available: {row['reason'].rstrip('.')}.{hint}")
        if settings.verbose:
            click.echo(f"\n{row['name']}: {_capability_text(row['capabilities'])}")
            for key, option in row["options"].items():
                click.echo(f"  -o {key}={option['takes']}  (default {option['default']})")
            for server in row.get("servers", ()):
                facts = ", ".join(
                    f"{key} {value}" for key, value in server.items() if key not in ("url", "models")
                )
                click.echo(f"  {server['url']}: {facts}; models: {', '.join(server['models'])}")


def _row(name: str, one: plugins.Registered[BackendSpec]) -> dict[str, Any]:
    spec, state = one.spec, context.availability(one.spec)
    return {
        "name": name,
        "state": "available" if state.ok else "unavailable",
        "reason": state.reason,
        "hint": state.hint,
        "summary": spec.summary,
        "distribution": one.distribution,
        "version": one.version,
        "api": spec.api,
        "protocol": spec.protocol,
        "place": spec.place,
        "capabilities": {f.name: getattr(spec.capabilities, f.name) for f in fields(Capabilities)},
        "options": _options(spec),
        **({"servers": _servers(name)} if spec.catalog is not None else {}),
    }


def _options(spec: BackendSpec) -> dict[str, dict[str, Any]]:
    """What -o takes, from the annotations; {} where the class cannot be loaded."""
    if spec.open_options is None:
        return {}
    try:
        cls = load_object(spec.open_options)
        hints = get_type_hints(cls)
        defaults = options.as_dict(cls())
    except Exception:
        return {}
    return {
        name: {"takes": options.describe(hints[name]), "default": value}
        for name, value in defaults.items()
        if not options.is_secret(name)  # those are taken from elsewhere
    }


def _servers(name: str) -> list[dict[str, Any]]:
    """The servers that a backend was used with: what each is, and its models."""
    catalog = context.catalogs().get(name)
    found: dict[str, dict[str, Any]] = {}
    for info in catalog.models() if catalog is not None else ():
        row = found.setdefault(info.source, {"url": info.source, **info.details, "models": []})
        row["models"].append(info.name)
    return list(found.values())


def _capability_text(capabilities: dict[str, Any]) -> str:
    words = []
    for name, value in capabilities.items():
        if value is True:
            words.append(name)
        elif value not in (False, None):
            shown = "+".join(value) if isinstance(value, tuple) else value
            words.append(f"{name}={shown}")
    return ", ".join(words)
