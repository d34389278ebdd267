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


@click.command()
@model_option
@backend_option
@engine_options
@option("--rounds", metavar="N", type=Count(min=1), default=5, show_default=True, help="Rounds to compare.")
@option("--cancels", metavar="N", type=Count(min=0), default=60, show_default=True, help="Cancels to time.")
@option("--requests", metavar="N", type=Count(min=0), default=200, show_default=True, help="For the memory.")
@option("--serve", is_flag=True, help='Measure what "exo serve" costs instead.')
@option("--peer", metavar="COMMAND", help="With --serve: another server of this model; {port} is its port.")
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
    requests: int,
    serve: bool,
    peer: str | None,
    peer_model: str,
    pull: bool,
    as_json: bool,
) -> None:
    """Measure a backend with a model: speed, cancel latency, memory, and what exo itself costs."""
    chosen = context.choose(model, backend, pairs)
    session = chosen.session(pulling.ensure(chosen, settings, yes=pull))
    if serve:
        from exocli.server import bench as serving

        flags = ["-m", chosen.model, "-b", chosen.backend]
        load = serving.Plan(rounds=rounds, requests=requests)
        other = shlex.split(peer) if peer else None
        work = serving.measure(session, flags, load, settings.note, other, peer_model)
    else:
        from exocli import benchmarks

        plan = benchmarks.Plan(rounds=rounds, cancels=cancels, requests=requests)
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
