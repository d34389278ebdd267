"""`exo sample-hello`, a command of its own."""

import click


@click.command()
@click.argument("name", default="world")
def hello(name: str) -> None:
    """Say hello, from a plugin."""
    click.echo(f"Hello, {name}.")
