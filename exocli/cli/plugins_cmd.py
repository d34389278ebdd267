"""`exo plugins`: which there are and what they offer, what is wrong with them, and writing a new one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from exocli import plugins as registry
from exocli.cli import plugin_check, render
from exocli.cli.params import complete_backend, json_option, option
from exocli.cli.render import Globals, pass_globals
from exocli.errors import ExoError, UsageError


@click.group()
def plugins() -> None:
    """List, check, write and test plugins."""


@plugins.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the plugins that were found, and what each offers."""
    rows = _rows()
    if as_json:
        render.print_json(rows)
        return
    table = [[r["plugin"], f"{r['distribution']} {r['version']}", ", ".join(r["offers"])] for r in rows]
    render.print_table(["PLUGIN", "FROM", "OFFERS"], table)
    for row in rows:
        for problem in row["problems"]:
            click.echo(f"\n{row['plugin']}: {problem}")


def _rows() -> list[dict[str, Any]]:
    found = registry.manager()
    origins = dict.fromkeys([*found.loaded, *((p.plugin, p.distribution, p.version) for p in found.problems)])
    rows = []
    for plugin, distribution, version in origins:
        offers = [
            f"{kind} {name}"
            for kind, table in (
                ("backend", found.backends),
                ("command", found.commands),
                ("routes", found.routes),
            )
            for name, one in table.items()
            if (one.plugin, one.distribution) == (plugin, distribution)
        ]
        problems = [p.reason for p in found.problems if (p.plugin, p.distribution) == (plugin, distribution)]
        rows.append(
            {
                "plugin": plugin,
                "distribution": distribution,
                "version": version,
                "offers": offers,
                "problems": problems,
            }
        )
    return rows


@plugins.command()
@click.argument("name", required=False)
@json_option
def check(name: str | None, as_json: bool) -> None:
    """Import everything that plugins only name, and say what is wrong. Exit 1 if anything is.

    NAME is a plugin or a distribution; without it, all are checked.
    """
    rows = [row for row in _rows() if name in (None, row["plugin"], row["distribution"])]
    if not rows:
        there = ", ".join(row["plugin"] for row in _rows()) or "none"
        raise UsageError(f'There is no plugin "{name}"; installed are: {there}.')
    for row in rows:
        row["problems"] += plugin_check.problems_of(row["plugin"], row["distribution"])
    if as_json:
        render.print_json(rows)
    else:
        for row in rows:
            verdict = "; ".join(row["problems"]) or "good"
            click.echo(f"{row['plugin']} ({row['distribution']} {row['version']}): {verdict}")
    if any(row["problems"] for row in rows):
        raise click.exceptions.Exit(1)


@plugins.command()
@click.argument("name")
@option("--dir", "parent", metavar="DIR", type=click.Path(path_type=Path), default=Path(), help="Where.")
@pass_globals
def new(settings: Globals, name: str, parent: Path) -> None:
    """Write a small working plugin, with a test, to start from."""
    from exocli.cli import scaffold

    folder = scaffold.write(name, parent)
    settings.note(
        f"{folder} is a plugin with a backend that answers. Next:\n"
        f"  {sys.executable} -m pip install -e {folder} pytest\n"
        f'  exo run -b {scaffold.backend_name(name)} "hello"\n'
        f"  exo plugins test {scaffold.backend_name(name)}"
    )


@plugins.command()
@click.argument("name", shell_complete=complete_backend)
@click.argument("pytest_args", nargs=-1)
def test(name: str, pytest_args: tuple[str, ...]) -> None:
    """Run the conformance kit on a backend; what follows `--` goes to pytest. Exit 1 if a test fails."""
    import subprocess
    from importlib.util import find_spec

    registry.backend(name)
    if find_spec("pytest") is None:
        raise ExoError(f'The kit needs pytest: run "{sys.executable} -m pip install pytest".')
    command = [sys.executable, "-m", "pytest", "--pyargs", "exocli.testing.suite", "--exo-backend", name]
    ended = subprocess.run([*command, "-p", "no:cacheprovider", *pytest_args], check=False).returncode
    click.echo(f"The backend {name} {'passes' if ended == 0 else 'does not pass'} the conformance kit.")
    if ended:
        raise click.exceptions.Exit(1)
