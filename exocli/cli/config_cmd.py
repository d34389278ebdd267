"""`exo config`: show and change config.toml. The file itself is exocli/config.py's business."""

from __future__ import annotations

import json
from typing import Any

import click

from exocli import config as store
from exocli.cli import config_keys, render
from exocli.cli.params import Words, json_option
from exocli.cli.render import Globals, pass_globals
from exocli.errors import ExoError
from exocli.options import is_secret


@click.group()
def config() -> None:
    """Show and change settings."""


@config.command()
def path() -> None:
    """Print where the settings are kept."""
    click.echo(str(store.config_path()))


@config.command()
@json_option
@pass_globals
def show(settings: Globals, as_json: bool) -> None:
    """Print all settings; keys and tokens of servers are hidden."""
    if as_json:
        render.print_json(config_keys.hide_secrets(store.load()))
        return
    text = store.text(is_secret)
    if not text.strip():
        settings.note(f"Nothing is set; {store.config_path()} does not exist or is empty.")
    click.echo(text, nl=not text.endswith("\n") and bool(text))


@config.command("get")
@click.argument("key", shell_complete=config_keys.complete_set)
@json_option
def get_(key: str, as_json: bool) -> None:
    """Print one setting, by its dotted key."""
    missing = object()
    value: Any = store.get(key, missing)
    if value is missing:
        raise ExoError(f'"{key}" is not set.')
    if as_json:
        render.print_json(value)
    elif isinstance(value, str):
        click.echo(value)
    else:
        click.echo(json.dumps(value, ensure_ascii=False, default=str))


@config.command("set", context_settings={"ignore_unknown_options": True})  # a value may begin with "-"
@click.argument("key", type=Words(), shell_complete=config_keys.complete_known)
@click.argument("value", type=Words())
@pass_globals
def set_(settings: Globals, key: str, value: str) -> None:
    """Set one setting: `exo config set model smollm2`, `exo config set backends.mlx.chunk 128`."""
    store.set_value(key, config_keys.check(key, value))
    settings.detail(f"{key} is set in {store.config_path()}")


@config.command()
@click.argument("key", shell_complete=config_keys.complete_set)
def unset(key: str) -> None:
    """Take one setting back, so that its default counts again."""
    if not store.unset(key):
        raise ExoError(f'"{key}" is not set.')
