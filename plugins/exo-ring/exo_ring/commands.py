"""`exo ring check` and `exo ring plan`: the flags and the reports; check.py does the work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from exocli import ModelNotFound, Unavailable, choose

from exo_mlx import models
from exo_ring import check as checking
from exo_ring.launcher import launch
from exo_ring.options import Options

MEGABYTES = 16.0
F = TypeVar("F", bound=Callable[..., Any])


def _options(fn: F) -> F:
    for decorator in (
        click.option("--json", "as_json", is_flag=True, help="Machine-readable output."),
        click.option("-o", "pairs", metavar="KEY=VALUE", multiple=True, help="The backend ring's options."),
        click.option("-m", "--model", metavar="MODEL", envvar="EXO_MODEL", help="Which model."),
    ):
        fn = decorator(fn)
    return fn


@click.group()
def ring() -> None:
    """Look at a ring of machines before a model is loaded on it."""


@ring.command()
@_options
def check(model: str | None, pairs: tuple[str, ...], as_json: bool) -> None:
    """Is every host there, with the same versions and the same model, and how fast are the links?"""
    report = _probe(model, pairs, MEGABYTES)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        _print_ranks(report)
    _fail(report)
    if not as_json:
        click.echo("The ring can be formed.")


@ring.command()
@_options
def plan(model: str | None, pairs: tuple[str, ...], as_json: bool) -> None:
    """Who would hold which layers, and how much memory that takes."""
    report = _probe(model, pairs, 0.0)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    elif report.plan is not None:
        _print_plan(report.plan)
    _fail(report)


def _probe(model: str | None, pairs: tuple[str, ...], megabytes: float) -> checking.Report:
    chosen = choose(model, "ring", pairs)
    options = Options(**chosen.options)
    path = models.source().locate(chosen.ref)
    if path is None:
        raise ModelNotFound(
            f'{chosen.model} is not on this machine: "exo models pull {chosen.model}" fetches it.'
        )
    return checking.run(launch(chosen.ref, options), options, str(path), chosen.model, megabytes)


def _fail(report: checking.Report) -> None:
    if report.errors:
        raise Unavailable(" ".join(report.errors))


def _print_ranks(report: checking.Report) -> None:
    rows = [
        [
            str(rank),
            each["host"],
            " ".join(f"{name} {number}" for name, number in each["versions"].items()),
            (each["model"] or "not there")[:9],
            _gb(each["available"]),
            f"{each['latency_s'] * 1e6:.0f} µs",
            f"{each['bytes_per_s'] / 1e6:.0f} MB/s" if "bytes_per_s" in each else "",
        ]
        for rank, each in enumerate(report.ranks)
    ]
    if rows:
        _table(["RANK", "HOST", "VERSIONS", "MODEL", "FREE", "TO THE NEXT", ""], rows)


def _print_plan(plan: Mapping[str, Any]) -> None:
    tensor = plan["strategy"] == "tensor"
    rows = [
        [
            str(share["rank"]),
            share["host"],
            f"a part of {share['stop']}" if tensor else f"{share['start']}-{share['stop'] - 1}",
            _gb(share["weight_bytes"]),
            f"{share['kv_bytes_per_token'] / 1e3:.1f} kB",
            _gb(share["needed"]),
            _gb(share["available"]),
        ]
        for share in plan["shares"]
    ]
    _table(["RANK", "HOST", "LAYERS", "WEIGHTS", "KV A TOKEN", "NEEDS", "FREE"], rows)
    click.echo(plan["why"])


def _gb(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e9:.2f} GB"


def _table(headers: list[str], rows: list[list[str]]) -> None:
    """Aligned columns, never wrapped or cut."""
    table = [headers, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
