"""The loop of `exo chat`: read a message, let the model reply, keep what came of it. One asyncio loop.

Ties together editor, view, transcript, store and session; each of those knows none of the others. A
Ctrl-C's way: `_on_interrupt` → stopping.py says what it means → the reply's CancelToken, or the kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from exocli.cancel import CancelToken
from exocli.chat import commands, notes
from exocli.chat.editor import Editor, EmptyInterrupt
from exocli.chat.stopping import Stopping
from exocli.chat.store import Conversation, Store
from exocli.chat.terminal import Quiet
from exocli.chat.transcript import Transcript
from exocli.chat.view import View
from exocli.chat.waiting import Waiting
from exocli.errors import ExoError, from_dict
from exocli.runtime.loop import describe_error
from exocli.runtime.session import Session
from exocli.types import Event, Finished, Progress, Reasoning, Request, Text, new_id

TICK_S = 0.1


@dataclass
class Reply:
    """One reply on its way."""

    waiting: Waiting
    id: str = field(default_factory=new_id)
    cancel: CancelToken = field(default_factory=CancelToken)
    stopping: Stopping = field(default_factory=Stopping)
    pieces: list[str] = field(default_factory=list)
    spoke: bool = False
    """Something of it is on the screen."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the program should end: with `code`, or by `signal` if one asked for it."""

    code: int = 0
    signal: int | None = None


class Chat:
    """`person`: somebody types; without one (a pipe) Ctrl-C ends the program instead of the reply alone.
    `quiet`: the terminal's mode, where there is one. `store` None keeps nothing.
    `make_editor` is given a function that says whether Ctrl-C is still the one that stopped a reply."""

    def __init__(
        self,
        *,
        session: Session,
        desk: commands.Desk,
        stop: tuple[str, ...],
        view: View,
        make_editor: Callable[[Callable[[], bool]], Editor],
        store: Store | None,
        person: bool,
        quiet: Quiet | None,
        verbose: bool = False,
    ) -> None:
        self._session = session
        self._desk = desk
        self._stop = stop
        self._view = view
        self._editor = make_editor(self._just_stopped)
        self._store = store
        self._person = person
        self._quiet = quiet
        self._verbose = verbose
        self._reply: Reply | None = None
        self._last_stop: Stopping | None = None
        self._resuming = False
        self._loads: asyncio.Task[None] | None = None
        self._ever_loaded = False
        self._broken: ExoError | None = None
        self._code = 0
        self._signal: int | None = None
        self._warned = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _transcript(self) -> Transcript:
        return self._desk.conversation.transcript

    async def run(self) -> Ending:
        """Until the user leaves or a signal ends it; the workers are gone then. Raises ExoError if the
        engine could never be opened."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_end, number)
        try:
            await self._converse()
        except asyncio.CancelledError:
            if self._signal is None:
                raise
        finally:
            if self._loads is not None:
                self._loads.cancel()
            await self._session.close()
        return Ending(self._code, self._signal)

    # -------------------------------------------------------------------------------- the loop

    async def _converse(self) -> None:
        draft = ""
        while self._signal is None:
            if self._person:
                self._load()
            try:
                text = await self._editor.read(draft)
            except EmptyInterrupt:
                if not self._person:
                    self._signal = signal.SIGINT
                    return
                draft = ""
                self._view.note("Ctrl-D or /exit leaves.")
                continue
            except EOFError:
                break
            draft = ""
            if text.strip():
                try:
                    draft = await self._handle(text)
                except _Leave:
                    break
        if self._broken is not None:
            raise self._broken

    async def _handle(self, text: str) -> str:
        """One message or command; → what the editor begins with next."""
        parsed = commands.parse(text)
        if parsed is None:
            self._transcript.ask(text.strip("\n"))
            return await self._answer()
        try:
            effect = commands.run(self._desk, *parsed)
        except ExoError as error:
            self._view.error(error.message)
            return ""
        if effect.say:
            self._view.note(effect.say)
        if effect.do == "leave":
            raise _Leave
        if effect.do == "reply":
            return await self._answer()
        if effect.do == "new":
            old = self._desk.conversation
            fresh = Transcript(old.transcript.system)
            self._desk.conversation = Conversation(model=old.model, backend=old.backend, transcript=fresh)
        elif parsed[0] in ("undo", "system"):
            self._save()
        return ""

    def _load(self) -> None:
        """Open the engine while the user types."""
        if not self._session.loaded and (self._loads is None or self._loads.done()):
            self._loads = asyncio.create_task(self._open())

    async def _open(self) -> None:
        try:
            await self._session.load()
            self._ever_loaded = True
        except Exception as error:
            # A reply that waits for the engine tells of it itself, and so does the next one.
            if not self._ever_loaded and self._reply is None:
                self._broken = from_dict(describe_error(error))
                self._editor.close()

    def _save(self) -> None:
        if self._store is None:
            return
        try:
            self._store.save(self._desk.conversation)
        except OSError as error:
            if not self._warned:
                self._warned = True
                reason = error.strerror or str(error)
                self._view.error(f"This conversation cannot be saved ({reason}); the chat goes on without.")

    # ------------------------------------------------------------------------------- one reply

    async def _answer(self) -> str:
        """Let the model reply to the transcript; → a question that was taken back by a cancel."""
        session, transcript = self._session, self._transcript
        if self._ever_loaded and not session.loaded and not session.loading:
            self._view.note("The worker had ended; it is started again.")
        reply = self._reply = Reply(Waiting(session.model, session.spec.name))
        request = Request(
            id=reply.id,
            model=session.model,
            messages=transcript.messages(),
            sampling=self._desk.sampling,
            max_tokens=self._desk.max_tokens,
            stop=self._stop,
            continue_last=transcript.continuing,
        )
        finished = Finished(id=reply.id, reason="cancelled")
        with self._watching(reply):
            try:
                async for event in session.stream(request, reply.cancel):
                    self._ever_loaded = self._ever_loaded or session.loaded
                    if isinstance(event, Finished):
                        finished = event
                    else:
                        self._show(reply, event)
            finally:
                transcript.settle("".join(reply.pieces), finished)
                self._save()
        if reply.stopping.asked is not None and not self._person:
            self._signal = signal.SIGINT
        if finished.reason == "error" and not self._ever_loaded and finished.error is not None:
            raise from_dict(finished.error)
        return self._conclude(reply, finished)

    def _show(self, reply: Reply, event: Event) -> None:
        match event:
            case Text(text=text):
                reply.pieces.append(text)
                reply.spoke = True
                self._view.text(text)
            case Reasoning(text=text):
                reply.spoke = True
                self._view.reasoning(text)
            case Progress(cached=cached, total=total) if self._resuming and cached:
                self._resuming = False
                self._view.note(notes.resumed(cached, total))
                reply.waiting.observe(event)
            case _:
                reply.waiting.observe(event)

    def _conclude(self, reply: Reply, finished: Finished) -> str:
        if reply.spoke:
            self._view.end_reply()
        taken_back = self._transcript.taken_back
        self._resuming = taken_back is not None and finished.cancel is not None
        if finished.error is not None:
            self._code = 0 if self._person else 1
            self._view.error(str(finished.error.get("message", "The reply failed.")))
        elif note := notes.ending(finished, bool(reply.pieces)):
            self._view.note(note)
        edited = finished.reason == "cancelled" and self._person and not self._view.plain
        if taken_back is not None and self._person and not edited:
            self._view.note("Your message was taken back; /retry sends it again.")
        if self._verbose:
            self._view.note(notes.measured(finished))
        if self._person:
            self._view.blank()
        return taken_back or "" if edited else ""

    @contextlib.contextmanager
    def _watching(self, reply: Reply) -> Iterator[None]:
        """While a reply is on its way: the line about the wait, the overdue cancel, Ctrl-Z."""
        loop = asyncio.get_running_loop()
        ticker = asyncio.create_task(self._tick(reply))
        if self._quiet is not None:
            self._quiet.hold_pastes()
            loop.add_signal_handler(signal.SIGTSTP, self._on_suspend, self._quiet)
        self._view.begin_waiting()
        try:
            yield
        finally:
            ticker.cancel()
            if self._quiet is not None:
                loop.remove_signal_handler(signal.SIGTSTP)
            self._reply = None
            self._view.done_waiting()

    async def _tick(self, reply: Reply) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if reply.stopping.overdue(self._session.cancel_deadline):
                self._offer(reply)
            elif not reply.spoke:
                if self._session.loaded:
                    reply.waiting.loaded()
                self._view.waiting(reply.waiting.line())

    # --------------------------------------------------------------------------------- signals

    def _just_stopped(self) -> bool:
        return self._last_stop is not None and self._last_stop.recent

    def _on_interrupt(self) -> None:
        reply = self._reply
        if reply is None:
            if not self._just_stopped():
                self._editor.interrupt()
            return
        match reply.stopping.press():
            case "cancel":
                self._last_stop = reply.stopping
                reply.waiting.stopping = True
                if self._person and self._view.plain:
                    self._view.interrupted()
                if self._loads is not None:
                    self._loads.cancel()  # the reply is the last who waits for the engine: the load ends
                reply.cancel.cancel("Ctrl-C")
                reads_on = self._session.capabilities.cancel_prefill == "none"
                if reads_on and self._session.loaded and not reply.spoke:
                    self._view.note(f"{self._session.spec.name} finishes reading the prompt first.")
            case "offer":
                self._offer(reply)
            case "kill":
                self._view.note("Killing the worker.")
                self._spawn(self._session.kill())
            case "nothing":
                pass

    def _offer(self, reply: Reply) -> None:
        who = self._session.waiting_for(reply.id)
        self._view.note(notes.offer(who), always=True)

    def _on_suspend(self, quiet: Quiet) -> None:
        loop = asyncio.get_running_loop()
        self._view.done_waiting()
        loop.remove_signal_handler(signal.SIGTSTP)
        quiet.suspend()
        loop.add_signal_handler(signal.SIGTSTP, self._on_suspend, quiet)

    def _on_end(self, number: int) -> None:
        """SIGTERM, SIGHUP: leave in good order; a second one no longer waits for the worker."""
        if self._signal is None and self._main is not None:
            self._signal = number
            self._main.cancel()
        else:
            self._spawn(self._session.kill())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Leave(Exception):
    """/exit."""
