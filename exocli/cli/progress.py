"""The line on stderr while a reply is on its way: loading, queued, prefill, thinking. Gone before the text.

Only on a terminal, and only for what takes longer than half a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from exocli.cli import render
from exocli.cli.render import Globals

if TYPE_CHECKING:
    from exocli.types import Event

PATIENCE_S = 0.5


def prefill_text(processed: int, total: int, cached: int, seconds: float) -> str:
    """`1024/4096 tokens, 180 tok/s, 17 s left (512 cached)`; `seconds` since the first chunk began."""
    done = processed - cached
    text = f"{processed}/{total} tokens"
    if done > 0 and seconds > 0:
        speed = done / seconds
        text += f", {speed:.0f} tok/s, {(total - processed) / speed:.0f} s left"
    return f"{text} ({cached} cached)" if cached else text


@contextmanager
def reply_progress(settings: Globals) -> Iterator[Callable[[Event], None]]:
    """Gives show(event), to be called with every event of one reply."""
    if settings.quiet or render.plain(sys.stderr):
        yield lambda event: None
        return
    line = _Line()
    try:
        yield line.show
    finally:
        line.clear()


class _Line:
    """One line, rewritten in place with carriage returns."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._prefill: float | None = None
        self._shown = False

    def show(self, event: Event) -> None:
        from exocli.types import Progress, Reasoning, Status

        now = time.monotonic()
        match event:
            case Status(phase="queued", position=int(position), text=text):
                self._put(f"queued, number {position}{f', {text}' if text else ''}")
            case Status(text=str(text)):
                self._put(text)
            case Status(done=done, total=total) if now - self._began > PATIENCE_S:
                share = f" {100 * done // total} %" if done is not None and total else ""
                self._put(f"loading the model{share}")
            case Progress(processed=processed, total=total, cached=cached) if processed < total:
                self._prefill = self._prefill or now
                if now - self._prefill > PATIENCE_S:
                    self._put("prefill " + prefill_text(processed, total, cached, now - self._prefill))
            case Reasoning():
                self._put("thinking")
            case Progress() | Status():
                pass
            case _:
                self.clear()

    def _put(self, text: str) -> None:
        self._shown = True
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
