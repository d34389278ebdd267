"""`exo ps`: loaded models, then requests in flight, of a running server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from exocli.cli.params import json_option, option
from exocli.cli.render import print_json, print_table, size_text


@click.command(help="Show what a running server has loaded and what it works on.")
@option("--url", metavar="URL", help="The server; unless told otherwise the one that runs here.")
@json_option
def ps(url: str | None, as_json: bool) -> None:
    from exocli.server.client import Server

    server = Server(url)
    models = server.get("/api/ps")["models"]
    requests = server.get("/v1/requests")["data"]
    if as_json:
        print_json({"models": models, "requests": requests})
        return
    print_table(("MODEL", "BACKEND", "MEMORY", "KV TOKENS", "UNLOADS IN"), [_model(row) for row in models])
    click.echo()
    print_table(
        ("ID", "CLIENT", "MODEL", "PHASE", "PROMPT", "TOKENS", "AGE"), [_request(row) for row in requests]
    )


def _model(row: dict[str, Any]) -> tuple[str, ...]:
    memory = size_text(row["size_vram"]) if row.get("size_vram") else "?"
    until = row.get("expires_at")
    left = "never"
    if until:
        seconds = (datetime.fromisoformat(until) - datetime.now(UTC)).total_seconds()
        left = f"{max(0, round(seconds))} s" if seconds < 10 * 365 * 86400 else "never"
    exo = row.get("exo", {})
    # What the running requests may come to, of what memory holds.
    kv = f"{exo['kv_reserved']:,}/{exo['kv_tokens']:,}" if exo.get("kv_tokens") else "-"
    return row["name"], exo.get("backend", "?"), memory, kv, left


def _request(row: dict[str, Any]) -> tuple[str, ...]:
    prompt = f"{row['processed']}/{row['total']}"
    return (
        row["id"],
        row["client"],
        row["model"],
        row["phase"],
        prompt,
        str(row["tokens"]),
        f"{row['age_s']:.1f} s",
    )
