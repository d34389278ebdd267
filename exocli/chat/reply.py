"""One reply: streamed to the view, watched while it is on its way, stopped when Ctrl-C says so.

A Ctrl-C's way: conversation.py hears the signal → `Reply.press` → stopping.py says what it means → the
CancelToken of the session's stream, or the kill. Knows no transcript and no editor.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

from exocli.cancel import CancelToken
from exocli.chat import notes
from exocli.chat.stopping import Stopping
from exocli.chat.terminal import Quiet
from exocli.chat.view import View
from exocli.chat.waiting import Waiting
from exocli.runtime.session import Session
from exocli.types import Event, Finished, Progress, Reasoning, Request, Text, ToolCall

TICK_S = 0.1


class Reply:
    """`run` once. `finished`, `text` and `thought` are what came of it, at any moment, an interrupted `run`
    included.

    `quiet` is the terminal's mode, where there is one; `echoed` that the terminal shows ^C by itself;
    `resuming` that the same question was stopped while it was read; `on_cancel` is called at the first
    Ctrl-C.
    """

    def __init__(
        self,
        session: Session,
        request: Request,
        view: View,
        *,
        quiet: Quiet | None,
        echoed: bool,
        resuming: bool,
        on_cancel: Callable[[], object],
    ) -> None:
        self._session = session
        self._request = request
        self._view = view
        self._quiet = quiet
        self._echoed = echoed
        self._resuming = resuming
        self._on_cancel = on_cancel
        self._cancel = CancelToken()
        self._waiting = Waiting(session.model, session.spec.name)
        self._pieces: list[str] = []
        self._thoughts: list[str] = []
        self._spoke = False
        self._killing: asyncio.Task[None] | None = None
        self.stopping = Stopping()
        self.opened = False
        """The engine was there at some moment."""
        self.finished = Finished(id=request.id, reason="cancelled")

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def thought(self) -> str:
        return "".join(self._thoughts)

    async def run(self) -> None:
        """Until the session says that it is over. Raises OSError if the view cannot be written to."""
        with self._watched():
            async for event in self._session.stream(self._request, self._cancel):
                self.opened |= self._session.loaded
                self._show(event)

    def press(self) -> None:
        """Ctrl-C."""
        match self.stopping.press():
            case "cancel":
                self._waiting.stopping = True
                if self._echoed:
                    self._view.interrupted()
                self._on_cancel()
                self._cancel.cancel("Ctrl-C")
                reads_on = self._session.capabilities.cancel_prefill == "none"
                if reads_on and self._session.loaded and not self._spoke:
                    self._view.note(f"{self._session.spec.name} finishes reading the prompt first.")
            case "offer":
                self._offer()
            case "kill":
                self._view.note("Killing the worker.")
                self._killing = asyncio.create_task(self._session.kill())

    def _offer(self) -> None:
        self._view.note(notes.offer(self._session.waiting_for(self._request.id)), always=True)

    # -------------------------------------------------------------------------------- on its way

    def _show(self, event: Event) -> None:
        match event:
            case Finished():
                self.finished = event
            case Text(text=text):
                self._pieces.append(text)
                self._spoke = True
                self._view.text(text)
            case Reasoning(text=text):
                self._thoughts.append(text)
                self._spoke = True
                self._view.reasoning(text)
            case ToolCall():
                self._spoke = True
                self._view.note(notes.call(event))
            case _:
                if self._resuming and isinstance(event, Progress) and event.cached:
                    self._resuming = False
                    self._view.note(notes.resumed(event.cached, event.total))
                self._waiting.observe(event)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Around the stream: the line about the wait, the overdue cancel, Ctrl-Z."""
        ticker = asyncio.create_task(self._tick())
        if self._quiet is not None:
            self._quiet.hold_pastes()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self._suspend, self._quiet)
        self._view.begin_waiting()
        try:
            yield
        finally:
            ticker.cancel()
            if self._quiet is not None:
                asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)
            with contextlib.suppress(OSError):  # the terminal went away, which others notice as well
                self._view.end_reply()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.stopping.overdue(self._session.cancel_deadline):
                self._offer()
            elif not self._spoke:
                if self._session.loaded:
                    self._waiting.loaded()
                self._view.waiting(self._waiting.line())

    def _suspend(self, quiet: Quiet) -> None:
        loop = asyncio.get_running_loop()
        self._view.done_waiting()
        loop.remove_signal_handler(signal.SIGTSTP)
        quiet.suspend()
        loop.add_signal_handler(signal.SIGTSTP, self._suspend, quiet)
