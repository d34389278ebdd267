"""`exo stop`: unload a model of a running server, which gives its memory back."""

from __future__ import annotations

import click

from exocli.cli.params import json_option, option
from exocli.cli.render import print_json
from exocli.errors import ExoError, ModelNotFound


@click.command(help="Unload a model of a running server.")
@click.argument("model", metavar="MODEL")
@option("--url", metavar="URL", help="The server; unless told otherwise the one that runs here.")
@json_option
def stop(model: str, url: str | None, as_json: bool) -> None:
    from exocli.server.client import Server

    try:
        answer = Server(url).post("/api/generate", {"model": model, "keep_alive": 0, "stream": False})
    except ExoError as error:
        if error.details.get("status") == 404:
            raise ModelNotFound(error.message) from error
        raise
    in_use = answer.get("exo", {}).get("in_use")
    if as_json:
        print_json(answer)
    elif in_use:
        requests = "request is" if in_use == 1 else f"{in_use} requests are"
        click.echo(f"{model} will be unloaded once its {requests} done.")
    else:
        click.echo(f"{model} is unloaded.")
