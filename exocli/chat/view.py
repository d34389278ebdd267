"""What a conversation looks like: the reply on stdout, everything else on stderr.

On a terminal a live line while there is nothing to read yet, and dim notes; elsewhere, or with NO_COLOR or
TERM=dumb, plain text without control bytes. Decides nothing; knows no engine and no transcript.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TextIO

from exocli.chat.shown import printable
from exocli.cli import render

if TYPE_CHECKING:
    from rich.live import Live

    from exocli.chat.wrapping import Wrap

LINE_FIRST_S, LINE_EVERY_S = 2.0, 5.0
"""Without a live line: when the first line about a wait is due, and how far apart the next ones are."""


class View:
    """`quiet` leaves out notes and waits, never errors. Errors of writing come out as OSError."""

    def __init__(self, out: TextIO, err: TextIO, *, quiet: bool = False) -> None:
        from rich.console import Console

        from exocli.chat.wrapping import Wrap

        self._out, self._err = out, err
        self._quiet = quiet
        self.plain = render.plain(out)
        self._plain_notes = render.plain(err)
        self._same = out.isatty() and err.isatty()
        self._console = Console(file=err, highlight=False, markup=False, emoji=False)
        self._wrap: Wrap | None = None
        if not self.plain:
            self._wrap = Wrap(lambda: os.get_terminal_size(out.fileno()).columns)
        self._live: Live | None = None
        self._line_start = True
        self._dim = False
        self._next_line = 0.0

    # ---------------------------------------------------------------------------------- the reply

    def text(self, piece: str) -> None:
        """A piece of the reply."""
        self.done_waiting()
        self._leave_reasoning()
        self._write(printable(piece))

    def reasoning(self, piece: str) -> None:
        """A piece of the model's thinking: dim on a terminal, left out elsewhere."""
        self.done_waiting()
        if self.plain:
            return
        if not self._dim:
            self._dim = True
            self._out.write("\x1b[2m")
        self._write(printable(piece))

    def end_reply(self) -> None:
        """Close the reply's last line."""
        self.done_waiting()
        self._leave_reasoning()
        self._fresh_line()

    def interrupted(self) -> None:
        """Ctrl-C was pressed at a plain terminal, which shows it as ^C: begin a line after it."""
        self._line_start = True
        self._err.write("\n")
        self._err.flush()

    def blank(self) -> None:
        """Air between one exchange and the next, for a person alone."""
        if not self.plain:
            self._out.write("\n")
            self._out.flush()

    def _leave_reasoning(self) -> None:
        if self._dim:
            self._dim = False
            self._out.write("\x1b[22m")
            self._fresh_line()

    def _write(self, text: str) -> None:
        if text:
            self._out.write(self._wrap.feed(text) if self._wrap else text)
            self._out.flush()
            self._line_start = text.endswith("\n")

    def _fresh_line(self) -> None:
        if not self._line_start:
            self._write("\n")

    # ----------------------------------------------------------------------------------- the rest

    def note(self, text: str, *, always: bool = False) -> None:
        """What a person wants to know, on a line of its own; `always` says it to the quiet ones too."""
        if always or not self._quiet:
            self._say(text, "dim")

    def error(self, text: str) -> None:
        self._say(f"exo: {' '.join(text.split())}", "red")

    def _say(self, text: str, style: str) -> None:
        self.done_waiting()
        if self._same and not self._line_start:
            self._write("\n")
        if self._plain_notes:
            self._err.write(printable(text) + "\n")
        else:
            self._console.print(printable(text), style=style)
        self._err.flush()

    # --------------------------------------------------------------------------- while one waits

    def begin_waiting(self) -> None:
        self._next_line = time.monotonic() + LINE_FIRST_S

    def waiting(self, line: str) -> None:
        """Show what is going on; call it several times a second, with "" for nothing."""
        if self._quiet or not line:
            return
        if self._plain_notes:
            if time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + LINE_EVERY_S
                self._err.write(printable(line) + "\n")
                self._err.flush()
            return
        from rich.live import Live
        from rich.text import Text

        shown = Text(line, style="dim", no_wrap=True, overflow="ellipsis")
        if self._live is None:
            self._live = Live(
                shown,
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(shown, refresh=True)

    def done_waiting(self) -> None:
        """Take the live line away and show the cursor again."""
        if self._live is not None:
            self._live.stop()
            self._live = None
