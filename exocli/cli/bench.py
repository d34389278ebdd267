"""`exo bench`: how fast, how soon, how promptly a cancel, how much memory. Measures only what users see.

The measuring is exocli/benchmarks.py; here are the flags and the report.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click

from exocli.cli import context, pulling, render
from exocli.cli.params import backend_option, engine_options, json_option, model_option, option, pull_option
from exocli.cli.render import Globals, pass_globals


@click.command()
@model_option
@backend_option
@engine_options
@option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds to compare.")
@option("--cancels", type=click.IntRange(min=0), default=60, show_default=True, help="Cancels to time.")
@option("--requests", type=click.IntRange(min=0), default=200, show_default=True, help="For the memory.")
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
    pull: bool,
    as_json: bool,
) -> None:
    """Measure a backend with a model: speed, cancel latency, memory, and what exo itself costs."""
    from exocli import benchmarks

    chosen = context.choose(model, backend, pairs)
    path = pulling.ensure(chosen, settings, yes=pull)
    plan = benchmarks.Plan(rounds=rounds, cancels=cancels, requests=requests)
    report = asyncio.run(benchmarks.measure(chosen.session(path), plan, settings.note))
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
