"""Words on the terminal: what goes to stdout, what to stderr, and how plain. Knows no command.

Without a terminal, or with NO_COLOR or TERM=dumb, everything is plain text without control bytes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import click


@dataclass
class Globals:
    """The flags before the command. One object a process, `obj` of click's context."""

    verbose: int = 0
    quiet: bool = False
    debug: bool = False

    def note(self, text: str) -> None:
        """What a person wants to know; silent with -q."""
        if not self.quiet:
            click.echo(text, err=True)

    def detail(self, text: str) -> None:
        """What only -v shows."""
        if self.verbose:
            click.echo(text, err=True)

    def warn(self, text: str) -> None:
        if not self.quiet:
            click.echo(f"exo: warning: {text}", err=True)


pass_globals = click.make_pass_decorator(Globals, ensure=True)


def plain(stream: TextIO) -> bool:
    """True where control bytes have no place."""
    return not stream.isatty() or os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))


def print_json(value: Any) -> None:
    """Dataclasses and plain data as indented JSON on stdout."""
    from exocli.types import to_json

    click.echo(json.dumps(to_json(value), indent=2, ensure_ascii=False))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns on stdout, never wrapped or cut: the last column may be as long as it is."""
    table = [[*headers], *([*row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line = "  ".join(cells).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 and not plain(sys.stdout) else line)


def size_text(count: int) -> str:
    """Bytes for a person, in decimal units as disks and registries count: 105 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def fact_texts(facts: Mapping[str, Any]) -> list[str]:
    """What an engine says of itself, for a person: `context: 8192`, `weight: 538 MB`; what is not there is
    left out."""
    texts = []
    for name, value in facts.items():
        words = name.split("_")
        if "bytes" in words and isinstance(value, int):
            words.remove("bytes")
            value = size_text(value)
        if isinstance(value, (list, tuple)):
            value = ", ".join(map(str, value))
        if value not in (None, "", {}):
            texts.append(f"{' '.join(words)}: {value}")
    return texts


def asker(*, default: bool = True) -> Callable[[str], bool] | None:
    """A function that asks a yes/no question on the terminal, Enter alone being `default`; None where nobody
    is there to answer. The end of input is a no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def ask(question: str) -> bool:
        sys.stderr.write(f"{question} {'[Y/n]' if default else '[y/N]'} ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:
            sys.stderr.write("\n")
            return False
        return answer.strip().lower() in ("y", "yes", *([""] if default else []))

    return ask
