"""Where the user's messages come from: prompt_toolkit on a terminal, plain lines everywhere else.

Knows nothing of models. Ctrl-C while a message is being typed is `interrupt`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from exocli.chat.shown import folded, printable, short

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT, CONTINUATION = "> ", ". "
_OFFER = "Enter sends again, Tab edits: "


class EmptyInterrupt(Exception):
    """Ctrl-C with nothing typed."""


class Editor(Protocol):
    async def read(self, offer: str = "") -> str:
        """The next message, with "\\n" as its only line end. `offer` is one that can be sent again as it is
        or edited, where there is a place to show it; typing anything else declines it. Raises EOFError at the
        end of input, EmptyInterrupt for Ctrl-C on nothing."""

    def interrupt(self) -> None:
        """Ctrl-C while `read` waits: clear what was typed, or raise EmptyInterrupt in it."""

    def close(self) -> None:
        """End a waiting `read` with EOFError."""


def clean(text: str) -> str:
    """Line ends of every system to "\\n"; bytes that were no text to a mark for that."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "")


class TerminalEditor:
    """Emacs keys, history, Tab for commands. Enter sends, Alt-Enter begins a new line, a paste is one
    message however many lines it has. An offered message is shown dim: Enter sends it, Tab puts it into the
    line."""

    def __init__(
        self, stdout: TextIO, history: Path | None, commands: Iterable[str], ignore: Callable[[], bool]
    ) -> None:
        """`history` None keeps it in memory. While `ignore()` Ctrl-C does nothing."""
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.history import InMemoryHistory
        from prompt_toolkit.output.vt100 import Vt100_Output

        from exocli.chat.folding import Folding
        from exocli.chat.history import LineHistory

        # No cursor position requests: an answer that comes late lands in the next message.
        output = Vt100_Output.from_pty(stdout, term=os.environ.get("TERM"))
        output.enable_cpr = False
        words = WordCompleter(list(commands), sentence=True)
        self._ignore = ignore
        self._out = stdout
        self._offer = ""
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=lambda width, number, wrapped: "" if wrapped else CONTINUATION,
            placeholder=lambda: FormattedText([("fg:ansibrightblack", self._offered())]),
            erase_when_done=True,  # `_echo` leaves it in its shorter form
            completer=words,
            complete_while_typing=False,
            history=LineHistory(history) if history is not None else InMemoryHistory(),
            enable_suspend=True,
            input_processors=[Folding(output.get_size)],
            key_bindings=self._keys(),
            output=output,
        )

    def _offered(self) -> str:
        if not self._offer:
            return ""
        room = self._session.output.get_size().columns - len(PROMPT + _OFFER) - 2
        return _OFFER + short(self._offer, max(room, 8))

    def _keys(self) -> KeyBindings:
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            self._take_offer()
            event.current_buffer.validate_and_handle()

        @keys.add("tab", filter=Condition(self._offers))
        @keys.add("right", filter=Condition(self._offers))
        def _(event: KeyPressEvent) -> None:
            self._take_offer()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            self.interrupt()

        return keys

    def _offers(self) -> bool:
        return bool(self._offer) and not self._session.default_buffer.text

    def _take_offer(self) -> None:
        if self._offers():
            self._session.default_buffer.insert_text(self._offer)
            self._offer = ""

    async def read(self, offer: str = "") -> str:
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
        from prompt_toolkit.keys import Keys

        self._offer = offer
        text = await self._session.prompt_async(handle_sigint=False, set_exception_handler=False)
        self._echo(text)
        # Ctrl-C that came in one breath with Enter (a slow line does that) means the reply.
        keys = get_typeahead(self._session.input)
        others = [key for key in keys if key.key != Keys.ControlC]
        store_typeahead(self._session.input, others)
        if len(others) < len(keys):
            signal.raise_signal(signal.SIGINT)
        return clean(text)

    def _echo(self, text: str) -> None:
        columns = self._session.output.get_size().columns
        rows = folded(printable(clean(text)), columns, PROMPT, CONTINUATION)
        self._out.write("".join(f"{row}\n" for row in rows))
        self._out.flush()

    def interrupt(self) -> None:
        app = self._session.app
        if self._ignore() or not app.is_running or app.is_done:
            return
        buffer = self._session.default_buffer
        if buffer.text:
            buffer.reset()
        elif self._offer:
            self._offer = ""
            app.invalidate()
        else:
            app.exit(exception=EmptyInterrupt(), style="class:aborting")

    def close(self) -> None:
        app = self._session.app
        if app.is_running and not app.is_done:
            app.exit(exception=EOFError(), style="class:exiting")


class LineEditor:
    """A line is a message. The reading thread reads only while someone waits for it, and is never waited
    for: a read from a terminal or a pipe cannot be called off."""

    def __init__(self, fd: int, prompt: TextIO | None) -> None:
        """`prompt`: where to write one, for a person who types; None where nobody does."""
        self._fd = fd
        self._prompt = prompt
        self._lines: list[str] = []
        self._rest = b""
        self._ended = False
        self._wanted = threading.Semaphore(0)
        self._reading = False
        self._waiting: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="exo-stdin", daemon=True).start()

    async def read(self, offer: str = "") -> str:
        if self._prompt is not None:
            self._prompt.write(PROMPT)
            self._prompt.flush()
        while not self._lines:
            if self._ended:
                raise EOFError
            self._waiting = self._loop.create_future()
            if not self._reading:
                self._reading = True
                self._wanted.release()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return clean(self._lines.pop(0))

    def interrupt(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            if self._prompt is not None:
                self._prompt.write("\n")
            self._waiting.set_exception(EmptyInterrupt())

    def close(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(EOFError())

    def _read(self) -> None:
        while True:
            self._wanted.acquire()
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._take, data)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    def _take(self, data: bytes) -> None:
        self._reading = False
        *whole, self._rest = (self._rest + data).split(b"\n")
        if not data:
            self._ended = True
            whole, self._rest = [self._rest] if self._rest else [], b""
        self._lines += [line.decode("utf-8", "surrogateescape").removesuffix("\r") for line in whole]
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
