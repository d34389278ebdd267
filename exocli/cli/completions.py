"""Tab in bash, zsh and fish: our own scripts and the few lines they exchange with `exo`.

A script calls `exo` with _EXO_COMPLETE set and gets one candidate a line: TYPE, VALUE and HELP with tabs
between, where TYPE is "plain", or "file" or "dir" when the shell itself should complete names on disk.
click finds the candidates; its own scripts are not used, since their wire format differs by release.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import resources

import click
from click.shell_completion import ShellComplete, split_arg_string

from exocli.cli.render import Globals

SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """The script for one of SHELLS, also kept in completions/ for packagers."""
    return resources.files("exocli.cli").joinpath("shells", f"exo.{shell}").read_text(encoding="utf-8")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completions(shell: str) -> None:
    """Print the script that makes Tab work in a shell.

    \b
    bash:  eval "$(exo completions bash)"     in ~/.bashrc
    zsh:   eval "$(exo completions zsh)"      in ~/.zshrc, after compinit
    fish:  exo completions fish | source      in ~/.config/fish/config.fish
    """
    click.echo(script(shell), nl=False)


def answer(group: click.Group, args: Sequence[str]) -> int:
    """Print the candidates for what stands before the cursor; never an error, never a traceback.

    With _EXO_COMPLETE=words, `args` are the words after the program's name, the one at the cursor last.
    With _EXO_COMPLETE=line, the one argument is the line up to the cursor, as bash knows it.
    """
    line = os.environ.get("_EXO_COMPLETE") == "line"
    words = _words_of(args[0] if args else "") if line else list(args)
    before, incomplete = words[:-1], words[-1] if words else ""
    try:
        silent = {"obj": Globals(quiet=True)}
        items = ShellComplete(group, silent, "exo", "_EXO_COMPLETE").get_completions(before, incomplete)
    except Exception:  # a broken config or plugin must not write into the line being edited
        return 1
    for item in items:
        text = " ".join((item.help or "").split())
        sys.stdout.write(f"{item.type}\t{item.value}\t{text}\n")
    return 0


def _words_of(line: str) -> list[str]:
    words = split_arg_string(line)[1:]
    ended = line[-1:].isspace() and not line.endswith("\\ ")
    return [*words, ""] if ended or not words else words
