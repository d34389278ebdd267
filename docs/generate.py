"""Writes what is generated: docs/commands.md from every command's --help, and completions/.

`make docs` runs it; tests/test_docs.py fails when it was forgotten. Third-party plugins are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

os.environ["EXO_NO_PLUGINS"] = "1"

from exocli.cli.completions import SHELLS, script
from exocli.cli.main import build

ROOT = Path(__file__).parent.parent
WIDTH = 100

INTRO = """\
# Commands

Made from `--help` by `make docs`. Every flag has a variable in the environment: `--max-tokens` is
`EXO_MAX_TOKENS`. `-v`, `-q` and `--debug` may stand before or after the command.
"""


def pages(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    """The help of a command and of all below it, as Markdown."""
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    ctx = click.Context(command, info_name=name, parent=parent, **settings)
    yield f"## {ctx.command_path}\n\n```\n{command.get_help(ctx)}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(ctx):
            found = command.get_command(ctx, child)
            if found is not None:
                yield from pages(found, child, ctx)


def files() -> dict[Path, str]:
    """Every generated file and what belongs in it."""
    found = {ROOT / "docs" / "commands.md": "\n".join([INTRO, *pages(build(), "exo", None)])}
    for shell in SHELLS:
        found[ROOT / "completions" / f"exo.{shell}"] = script(shell)
    return found


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
