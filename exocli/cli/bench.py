"""`exo bench`: how fast, how soon, how promptly a cancel, how much memory. Measures only what users see.

The measuring is exocli/benchmarks.py; here are the flags and the report.
"""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import click

from exocli.cli import context, pulling, render
from exocli.cli.params import (
    Count,
    backend_option,
    engine_options,
    json_option,
    model_option,
    option,
    pull_option,
)
from exocli.cli.render import Globals, pass_globals
from exocli.errors import UsageError


@click.command()
@model_option
@backend_option
@engine_options
@option("--rounds", metavar="N", type=Count(min=1), default=5, show_default=True, help="Rounds to compare.")
@option("--cancels", metavar="N", type=Count(min=0), default=60, show_default=True, help="Cancels to time.")
@option("--requests", metavar="N", type=Count(min=0), help="For the memory: 200, with --serve 1000.")
@option("--serve", is_flag=True, help='Measure what "exo serve" costs instead.')
@option(
    "--peer",
    metavar="COMMAND",
    help="With --serve: another server of this model, at {port}; {model} is its folder.",
)
@option("--peer-model", metavar="NAME", default="default_model", help="What the peer calls the model.")
@pull_option
@json_option
@pass_globals
def bench(
    settings: Globals,
    model: str | None,
    backend: str | None,
    pairs: tuple[str, ...],
    rounds: int,
    cancels: int,
    requests: int | None,
    serve: bool,
    peer: str | None,
    peer_model: str,
    pull: bool,
    as_json: bool,
) -> None:
    """Measure a backend with a model: speed, cancel latency, memory, and what exo itself costs."""
    if peer and not serve:
        raise UsageError("--peer is compared with what --serve measures: give both.")
    chosen = context.choose(model, backend, pairs)
    path = pulling.ensure(chosen, settings, yes=pull)
    session = chosen.session(path)
    if serve:
        from exocli.server import bench as serving

        flags = ["-m", chosen.model, "-b", chosen.backend, *(flag for pair in pairs for flag in ("-o", pair))]
        load = serving.Plan(rounds=rounds, requests=1000 if requests is None else requests)
        command = [part.replace("{model}", path) for part in shlex.split(peer)] if peer else None
        other = serving.Peer(command=command, model=peer_model) if command else None
        work = serving.measure(session, flags, load, settings.note, other)
    else:
        from exocli import benchmarks

        plan = benchmarks.Plan(rounds=rounds, cancels=cancels, requests=200 if requests is None else requests)
        work = benchmarks.measure(session, plan, settings.note)
    report = asyncio.run(work)
    if as_json:
        render.print_json(report)
    else:
        render.print_table(["MEASURE", "VALUE"], [[name, _text(value)] for name, value in _flat(report)])


def _flat(report: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in report.items():
        key = f"{prefix}{name}"
        rows += _flat(value, f"{key}.") if isinstance(value, dict) else [(key, value)]
    return rows


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
