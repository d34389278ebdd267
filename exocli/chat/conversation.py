"""The loop of `exo chat`: read a message, let the model reply, keep what came of it. One asyncio loop.

Ties together editor, view, transcript, store and reply; each of those knows none of the others.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass

from exocli.chat import commands, notes
from exocli.chat.editor import Editor, EmptyInterrupt
from exocli.chat.reply import Reply
from exocli.chat.stopping import Stopping
from exocli.chat.store import Conversation, Store
from exocli.chat.terminal import Quiet
from exocli.chat.transcript import Transcript
from exocli.chat.view import View
from exocli.errors import ExoError, Unavailable, from_dict
from exocli.runtime.loop import describe_error
from exocli.runtime.session import Session
from exocli.supported import TASK_WORDS
from exocli.types import Request


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
        self._ever_opened = False
        self._broken: ExoError | None = None
        self._code = 0
        self._signal: int | None = None
        self._warned = False
        self._main: asyncio.Task[object] | None = None
        self._killing: asyncio.Task[None] | None = None

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
            self._stop_loading()
            await self._session.close()
        return Ending(self._code, self._signal)

    # -------------------------------------------------------------------------------- the loop

    async def _converse(self) -> None:
        offer = ""
        while self._signal is None:
            if self._person:
                self._load()
            try:
                text = await self._editor.read(offer)
            except EmptyInterrupt:
                if not self._person:
                    self._signal = signal.SIGINT
                    return
                offer = ""
                self._view.note("Ctrl-D or /exit leaves.")
                continue
            except EOFError:
                break
            offer = ""
            if text.strip():
                try:
                    offer = await self._handle(text)
                except _Leave:
                    break
        if self._broken is not None:
            raise self._broken

    async def _handle(self, text: str) -> str:
        """One message or command; → what the editor offers to send again."""
        parsed = commands.parse(text)
        if parsed is None:
            message = text.strip("\n")
            self._resuming = self._resuming and message == self._transcript.taken_back
            self._transcript.ask(message)
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
            self._check_can_chat()
            self._ever_opened = True
        except Exception as error:
            # A reply that waits for the engine tells of it itself, and so does the next one.
            if not self._ever_opened and self._reply is None:
                self._broken = from_dict(describe_error(error))
                self._editor.close()

    def _stop_loading(self) -> None:
        """Wait for the engine no longer: if no reply does either, the load ends."""
        if self._loads is not None:
            self._loads.cancel()

    def _check_can_chat(self) -> None:
        """Raises Unavailable for a model of another kind, which is known once it is open."""
        tasks = self._session.capabilities.tasks
        if self._session.loaded and "chat" not in tasks:
            only = " and ".join(TASK_WORDS.get(task, task) for task in tasks)
            why = "it has no chat template" if "complete" in tasks else f"it can only {only}"
            text = f"{self._session.model} cannot chat ({why}): choose another one with -m."
            raise Unavailable(" ".join([text, *self._session.facts.get("notes", ())]))

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
        """Let the model reply to the transcript; → what a cancel took back, to be offered again."""
        session, transcript = self._session, self._transcript
        if self._ever_opened and not session.loaded and not session.loading:
            self._view.note("The worker had ended; it is started again.")
        request = Request(
            model=session.model,
            messages=transcript.messages(),
            sampling=self._desk.sampling,
            max_tokens=self._desk.max_tokens,
            stop=self._stop,
            reasoning=self._desk.think,
            continue_last=transcript.continuing,
        )
        reply = self._reply = Reply(
            session,
            request,
            self._view,
            quiet=self._quiet,
            echoed=self._person and self._quiet is None,
            resuming=self._resuming,
            on_cancel=self._stop_loading,
        )
        try:
            await reply.run()
        finally:
            self._reply, self._last_stop = None, reply.stopping
            transcript.settle(reply.text, reply.finished, reply.thought)
            self._save()
        self._check_can_chat()
        self._ever_opened |= reply.opened
        if reply.finished.error is not None and not self._ever_opened:
            raise from_dict(reply.finished.error)
        if reply.stopping.asked is not None and not self._person:
            self._signal = signal.SIGINT
        return self._conclude(reply)

    def _conclude(self, reply: Reply) -> str:
        """Say how it ended."""
        finished, taken_back = reply.finished, self._transcript.taken_back
        cancelled = finished.reason == "cancelled"
        self._resuming = cancelled and taken_back is not None
        if finished.error is not None:
            self._code = 0 if self._person else 1
            self._view.error(str(finished.error.get("message", "The reply failed.")))
        elif note := notes.ending(finished, bool(reply.text)):
            self._view.note(note)
        offered = cancelled and self._quiet is not None
        if taken_back is not None and self._person and not offered:
            self._view.note("Your message was taken back; /retry sends it again.")
        if self._verbose:
            self._view.note(notes.measured(finished))
        if self._person:
            self._view.blank()
        return taken_back or "" if offered else ""

    # --------------------------------------------------------------------------------- signals

    def _just_stopped(self) -> bool:
        return self._last_stop is not None and self._last_stop.recent

    def _on_interrupt(self) -> None:
        if self._reply is not None:
            self._reply.press()
        elif not self._just_stopped():
            self._editor.interrupt()

    def _on_end(self, number: int) -> None:
        """SIGTERM, SIGHUP: leave in good order; a second one no longer waits for the worker."""
        if self._signal is None and self._main is not None:
            self._signal = number
            self._main.cancel()
        else:
            self._killing = asyncio.get_running_loop().create_task(self._session.kill())


class _Leave(Exception):
    """/exit."""
