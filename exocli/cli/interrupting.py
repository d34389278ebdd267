"""One request of a command that ends: its output, its cancel, and what Ctrl-C and SIGTERM do to both.

Shared by `run` and `embed`. Knows the session's end and its kill, nothing of what is asked or printed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from exocli.cancel import CancelToken
from exocli.cli import signals
from exocli.cli.output import Output

if TYPE_CHECKING:
    from exocli.runtime.session import Session

T = TypeVar("T")

LAST_WORDS_S = 2.0
"""After a signal: for how long a reader that takes nothing is waited for."""


class Interruptible:
    """The first signal cancels, and the last line is written; a second one kills the worker."""

    def __init__(self, session: Session) -> None:
        self.cancel = CancelToken()
        self.output = Output()
        self._session = session
        self._task: asyncio.Task[object] | None = None
        self._signal: int | None = None
        self._killing: set[asyncio.Future[None]] = set()

    async def run(self, work: Awaitable[T]) -> T:
        """What `work` answers, once the session is closed; after a signal the process ends by it instead."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            answer = await work
        except asyncio.CancelledError:
            if self._signal is None:
                raise
        finally:
            self.cancel.cancel("ended")
            await self._session.close()
        if self._signal is not None:
            signals.end_by(self._signal)
        return answer

    def _on_signal(self, number: int) -> None:
        self._signal = self._signal or number
        if self.cancel.cancel("interrupted"):
            asyncio.get_running_loop().call_later(LAST_WORDS_S, self._leave_a_stalled_reader)
        else:
            self._killing.add(asyncio.ensure_future(self._session.kill()))
            self._leave_a_stalled_reader()

    def _leave_a_stalled_reader(self) -> None:
        if self.output.stalled and self._task is not None:
            self._task.cancel()
