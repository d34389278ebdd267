"""`exo stop`: unload a model of a running server, which gives its memory back."""

from __future__ import annotations

import click

from exocli.cli.params import json_option, option
from exocli.cli.render import print_json


@click.command(help="Unload a model of a running server.")
@click.argument("model", metavar="MODEL")
@option("--url", metavar="URL", help="The server; http://127.0.0.1:52415 unless told otherwise.")
@json_option
def stop(model: str, url: str | None, as_json: bool) -> None:
    from exocli.server.client import Server

    answer = Server(url).post("/api/generate", {"model": model, "keep_alive": 0, "stream": False})
    if as_json:
        print_json(answer)
    elif answer.get("exo", {}).get("in_use"):
        click.echo(f"{model} will be unloaded once its {answer['exo']['in_use']} requests are done.")
    else:
        click.echo(f"{model} is unloaded.")
