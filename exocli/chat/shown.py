"""Texts in the form in which a terminal may show them: without control bytes, short, folded. Pure."""

from __future__ import annotations

import re

from rich.cells import cell_len, set_cell_size

ROWS = 3
"""Rows of text that are left of what is folded, about."""
FOLD_ABOVE = 12
"""A sent message of more rows than this is folded."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Model output must not drive the terminal: newline and tab are the only control bytes it may use."""
    return _CONTROL.sub("", text)


def short(text: str, width: int = 60) -> str:
    """The beginning of a message, on one line."""
    line = " ".join(text.split())
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def folded(text: str, columns: int, prompt: str, continuation: str) -> list[str]:
    """The rows under which a sent message stays on the screen: its lines, each after its prompt, or their
    beginning and how much there is."""
    first, *others = text.expandtabs().split("\n")
    lines = [prompt + first, *(continuation + line for line in others)]
    if sum(max(1, -(-cell_len(line) // columns)) for line in lines) <= FOLD_ABOVE:
        return lines
    size = f"({f'{len(lines):,} lines, ' if others else ''}{len(text):,} characters)"
    if cell_len(lines[0]) >= ROWS * columns:
        return [f"{set_cell_size(lines[0], ROWS * columns - len(size) - 4).rstrip()} … {size}"]
    shown = [line if cell_len(line) < columns else f"{set_cell_size(line, columns - 2)}…" for line in lines]
    return [*shown[:ROWS], f"{continuation}… {size}"]
