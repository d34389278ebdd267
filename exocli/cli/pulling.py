"""Fetching a model while someone watches: a bar on a terminal, lines elsewhere, and Ctrl-C at any time.

The fetching is the backend's (`ModelSource.pull`). Knows no command and no model by name.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from exocli.backend import ModelInfo, ModelRef, ModelSource, ProgressFn
from exocli.cancel import CancelToken
from exocli.cli import config_keys, context, render
from exocli.cli.render import Globals, size_text

LEAVE_WITHIN_S = 2.0
"""How long a cancelled pull may take to put its part file down before the program leaves without it."""

LINE_EVERY_S = 5.0


def chosen(
    settings: Globals,
    model: str | None,
    backend: str | None,
    pairs: tuple[str, ...],
    *,
    local: bool,
    pull: bool,
) -> tuple[context.Choice, str]:
    """`context.choose` and `ensure`, told to whoever listens: what `run`, `chat` and `embed` begin with."""
    choice = context.choose(model, backend, pairs, local=local)
    warn_of_strangers(settings)
    if choice.server:
        settings.note(f"Using exo serve at {choice.server}, which has {choice.model} (--local declines).")
    settings.detail(f"{choice.model} on {choice.backend}: {choice.why}")
    return choice, ensure(choice, settings, yes=pull)


def warn_of_strangers(settings: Globals) -> None:
    for text in config_keys.strangers():
        settings.warn(text)


def ensure(
    choice: context.Choice,
    settings: Globals,
    *,
    yes: bool = False,
    ask: Callable[[str], bool] | None = None,
) -> str:
    """`context.ensure_model` with a bar."""

    def pull_it(source: ModelSource, ref: ModelRef) -> None:
        pull(source, ref, settings)

    return context.ensure_model(choice, pull_it, ask or render.asker(), yes=yes)


def pull(source: ModelSource, ref: ModelRef, settings: Globals) -> ModelInfo:
    """Fetch `ref`. Ctrl-C and SIGTERM end it as everywhere; what was fetched stays for the next time.

    The work is in a thread of its own: the main one stays free to hear a signal while a socket is silent.
    """
    cancel = CancelToken()
    outcome: list[ModelInfo | BaseException] = []
    finished = threading.Event()

    def work() -> None:
        try:
            outcome.append(source.pull(ref, progress, cancel))
        except BaseException as error:  # it crosses to the main thread and is raised there
            outcome.append(error)
        finally:
            finished.set()

    try:
        with watching(f"Pulling {ref}", settings) as progress:
            threading.Thread(target=work, name="exo-pull", daemon=True).start()
            finished.wait()
    except BaseException:
        cancel.cancel("interrupted")
        settings.note(f"[stopped; what was fetched of {ref} is kept for the next pull]")
        finished.wait(LEAVE_WITHIN_S)
        raise
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


@contextmanager
def watching(what: str, settings: Globals) -> Iterator[ProgressFn]:
    """Gives a `progress(done, total)` in bytes, total 0 = unknown, that may be called from any thread."""
    if settings.quiet:
        yield lambda done, total: None
    elif render.plain(sys.stderr):
        yield _Lines(what, settings).update
    else:
        with _bar(what) as update:
            yield update


class _Lines:
    """A line at the start, at the end, and every few seconds between."""

    def __init__(self, what: str, settings: Globals) -> None:
        self._what, self._settings = what, settings
        self._next = 0.0
        self._last: tuple[int, int] | None = None

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        ended = total > 0 and done >= total
        if (now < self._next and not ended) or self._last == (done, total):
            return
        self._next, self._last = now + LINE_EVERY_S, (done, total)
        of = f" of {size_text(total)} ({100 * done // total} %)" if total else ""
        self._settings.note(f"{self._what}: {size_text(done)}{of}")


@contextmanager
def _bar(what: str) -> Iterator[ProgressFn]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        SpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
