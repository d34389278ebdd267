"""How the editor shows a line taller than the screen: by its beginning, while the cursor is elsewhere.

prompt_toolkit leaves the window blank instead of showing the end of such a line; a pasted document with a
question below it is the common case. What is sent is the whole text, whatever is shown.
"""

from __future__ import annotations

from collections.abc import Callable

from prompt_toolkit.data_structures import Size
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

from exocli.chat.shown import ROWS


class Folding(Processor):
    """`size` gives the terminal's."""

    def __init__(self, size: Callable[[], Size]) -> None:
        self._size = size

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        number, document = transformation_input.lineno, transformation_input.document
        line, size = document.lines[number], self._size()
        if number == document.cursor_position_row or len(line) < size.rows * size.columns // 2:
            return Transformation(transformation_input.fragments)
        shown = f"{line[: ROWS * size.columns - 40]} … ({len(line):,} characters)"
        return Transformation([("", shown)])
