"""The line that says what is going on before a reply's first word. Pure: events and times in, a line out.

Loading, queued, reading the prompt with speed and time left, or a backend that says nothing yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from exocli.types import Event, Progress, Status

SHOW_AFTER_S = 0.5
"""What takes less needs no line."""
BAR = 16


class Waiting:
    """One reply's wait. `clock` gives seconds."""

    def __init__(self, model: str, backend: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._backend = backend
        self._clock = clock
        self._began = clock()
        self._phase = ""
        self._since = self._began
        self._loaded: dict[int, tuple[int, int]] = {}
        self._position = 0
        self._progress: Progress | None = None
        self._last_progress = self._last_event = self._began
        self._note: str | None = None
        self.stopping = False
        """A cancel is on its way."""

    def observe(self, event: Event) -> None:
        now = self._clock()
        match event:
            case Status(phase=phase, text=text):
                self._phase, self._note = phase, text
                if event.total:
                    self._loaded[event.rank or 0] = (event.done or 0, event.total)
                self._position = event.position or 0
            case Progress():
                if self._phase != "prefill":
                    # The first chunk is done by now: reading began when the event before it came.
                    self._phase, self._since = "prefill", self._last_event
                self._progress = event
                self._last_progress = now
        self._last_event = now

    def loaded(self) -> None:
        """The engine is there, of which no event tells."""
        if self._phase == "loading":
            self._phase, self._note, self._last_event = "", None, self._clock()

    def line(self) -> str:
        """One line for a person, "" while there is nothing to tell yet."""
        now = self._clock()
        elapsed = now - self._began
        if self.stopping:
            return "stopping…"
        if self._phase == "loading":
            done = sum(d for d, _ in self._loaded.values())
            total = sum(t for _, t in self._loaded.values())
            parts = [f"loading {self._model}", *([_bar(done, total)] if total else []), _seconds(elapsed)]
        elif elapsed < SHOW_AFTER_S:
            return ""
        elif self._phase == "queued":
            place = f"place {self._position} in the queue" if self._position else "queued"
            parts = [place, _seconds(elapsed)]
        elif self._progress is not None and self._progress.processed < self._progress.total:
            parts = self._reading(self._progress, now)
        elif self._progress is not None:
            parts = [f"{self._progress.total:,} tokens read, waiting for the first word", _seconds(elapsed)]
        else:
            parts = [f"waiting for {self._backend}", _seconds(elapsed)]
        return " · ".join([*parts, *([self._note] if self._note else []), "Ctrl-C stops"])

    def _reading(self, progress: Progress, now: float) -> list[str]:
        done, total, cached = progress.processed, progress.total, progress.cached
        parts = [f"reading {_bar(done, total)} {done:,}/{total:,} tokens"]
        spent = self._last_progress - self._since
        if done > cached and spent > 0:
            speed = (done - cached) / spent
            left = max(0.0, (total - done) / speed - (now - self._last_progress))
            parts += [f"{speed:,.0f} tok/s", f"{_seconds(left)} left"]
        if cached:
            parts.append(f"{100 * cached // total} % cached")
        return parts


def _bar(done: int, total: int) -> str:
    full = min(BAR, BAR * done // total)
    return "█" * full + "░" * (BAR - full)


def _seconds(value: float) -> str:
    whole = round(value)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
