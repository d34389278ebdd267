"""`exo cancel`: stop one request of a running server, or all, and show what was stopped."""

from __future__ import annotations

from typing import Any

import click

from exocli.cli.params import json_option, option
from exocli.cli.render import print_json
from exocli.errors import ExoError, UsageError


@click.command(help="Cancel a request of a running server.")
@click.argument("request_id", metavar="ID", required=False)
@option("--all", "everything", is_flag=True, help="Cancel every request.")
@option("--url", metavar="URL", help="The server; unless told otherwise the one that runs here.")
@json_option
def cancel(request_id: str | None, everything: bool, url: str | None, as_json: bool) -> int:
    from exocli.server.client import Server

    if (request_id is None) != everything:
        raise UsageError('Name one request ("exo ps" shows their ids), or give --all.')
    server = Server(url)
    if request_id is None:
        receipts = server.post("/v1/requests/cancel")["data"]
    else:
        receipts = [server.post(f"/v1/requests/{_resolve(server, request_id)}/cancel")]
    if as_json:
        print_json({"data": receipts} if request_id is None else receipts[0])
    else:
        for receipt in receipts:
            click.echo(_line(receipt))
        if not receipts:
            click.echo("Nothing was running.")
    return 1 if any(receipt["state"] == "cancelling" for receipt in receipts) else 0


def _resolve(server: Any, text: str) -> str:
    """A unique prefix → the whole id; anything else goes to the server as it is. Raises ExoError."""
    from urllib.parse import quote

    ids = [row["id"] for row in server.get("/v1/requests")["data"]]
    if text not in ids:
        found = [one for one in ids if one.startswith(text)]
        if len(found) > 1:
            raise ExoError(f'"{text}" is the beginning of {len(found)} requests: {", ".join(found)}.')
        text = found[0] if found else text
    return quote(text, safe="")


def _line(receipt: dict[str, Any]) -> str:
    name = receipt["id"]
    if receipt["state"] == "finished":
        return f"{name} was over already ({receipt['reason']})."
    if receipt["state"] == "cancelling":
        return f"{name} is asked to stop; {receipt.get('waiting_for', 'its worker')} has not answered yet."
    kept = receipt.get("kept_tokens")
    note = f", {kept} tokens of its cache kept" if kept else ""
    where = f"{receipt['processed']} of {receipt['total']} prompt tokens done"
    return f"{name} cancelled in {receipt['phase']} ({where}{note}) after {receipt['latency_ms']:.0f} ms."
