"""The tags in a reply, by mlx-lm's state machine: what is answer, what is thought, what is a call.

On top of it the rules for tags that mean nothing: in prose, in a thought, of calls that are none. Those stay
text. Pure; the same text gives the same pieces on every rank, however it is cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from mlx_lm.generate import TextStateMachine, make_text_state_machine

from exo_mlx.channels import INITIAL, TRANSITIONS, known
from exo_mlx.tools import Call

Piece: TypeAlias = tuple[Literal["text", "reasoning"], str] | tuple[Literal["calls"], list[Call]]
Parse: TypeAlias = Callable[[str], list[Call]]


class Markers:
    """`state` is where the reply begins: "normal", "reasoning" where the prompt ends inside a thought, None
    for raw text, in which no tag means anything. `parse` reads a call's text and raises ValueError where it
    is none; None = no tools were offered. `answered`: the prompt ends inside an answer.

    White space around a thought and after a call is nobody's and is left out. A piece without calls says
    that one begins.
    """

    def __init__(self, tokenizer: Any, state: str | None, parse: Parse | None, answered: bool) -> None:
        machine = _machine(tokenizer) if state is not None else TextStateMachine()
        if state == "normal" and not answered:
            state = _initial(tokenizer) or state
        self._machine = machine.make_state(state or "normal")
        self._think_start: str | None = tokenizer.think_start
        self._think_end: str | None = tokenizer.think_end
        self._closes = bool(tokenizer.tool_call_end)
        self._parse = parse
        self._answered = answered
        self._trim = state == "reasoning" and not answered
        self._blank = ""
        self._opened_in = self._opener = self._body = ""
        self._pieces: list[Piece] = []

    @property
    def state(self) -> str:
        """ "normal", "reasoning", "tool", or one of the model's own between messages."""
        name: str = self._machine[0]
        return name

    @property
    def holding(self) -> bool:
        """Is there text that has not been given out, since it may be a tag's or a call's?"""
        return self.state == "tool" or bool(self._machine[3])

    def feed(self, text: str) -> list[Piece]:
        state = self.state
        if state != "tool":  # nearly always no tag is in it
            machine, segments = TextStateMachine.split(self._machine, text)
            if len(segments) == 1:
                self._machine = machine
                self._take(state, segments[0][1])
                return self._give()
        for character in text:
            before = self._machine
            self._machine, segments = TextStateMachine.split(before, character)
            safe = segments[0][1]
            self._take(before[0], safe)
            if len(segments) > 1:
                self._cross(before[0], (before[3] + character)[len(safe) :])
        return self._give()

    def finish(self, reason: str) -> list[Piece]:
        """The rest: a tag that was only begun is text, a call that was cut is as well. A call whose end
        tag is missing because the model ended before it is one all the same."""
        self._machine, rest, state = TextStateMachine.flush(self._machine)
        self._take(state, rest)
        if self.state == "tool":
            whole = reason == "stop" or (reason == "length" and not self._closes)
            self._close("", whole)
        return self._give()

    def _give(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    # ------------------------------------------------------------------------------------ the states

    def _cross(self, origin: str, marker: str) -> None:
        """`marker` was read in the state `origin`, and the machine is in the next one."""
        state = self.state
        if origin == "tool":
            self._close(marker, whole=True)
        elif state == "tool" and self._parse is not None:
            self._opened_in, self._opener, self._body = _prose(origin), marker, ""
            self._pieces.append(("calls", []))
        elif state == "tool" or (marker == self._think_start and self._answered):
            self._back(_prose(origin))
            self._take(_prose(origin), marker)
        elif "reasoning" in (origin, state):
            self._trim, self._blank = True, ""

    def _back(self, state: str) -> None:
        states = self._machine[2]
        self._machine = (state, states[state][0], states, "")

    def _close(self, marker: str, whole: bool) -> None:
        """The call ends: with its end tag, or without."""
        calls: list[Call] = []
        if whole and self._parse is not None:
            with contextlib.suppress(ValueError):
                calls = self._parse(self._body)
        if calls:
            self._pieces.append(("calls", calls))
            self._trim, self._blank = True, ""
        else:
            self._back(self._opened_in)
            self._take(self._opened_in, self._opener + self._body + marker)

    def _take(self, state: str, text: str) -> None:
        """Text of that state."""
        if state == "tool":
            self._body += text
            # A tag that is only mentioned in a thought must not swallow the end of the thought.
            if self._opened_in == "reasoning" and self._think_end and self._body.endswith(self._think_end):
                self._back("normal")
                thought = self._opener + self._body.removesuffix(self._think_end)
                self._take("reasoning", thought)
                self._trim, self._blank = True, ""
        elif state == "reasoning":
            self._say("reasoning", text)
        elif state == "normal":
            self._say("text", text)

    def _say(self, kind: Literal["text", "reasoning"], text: str) -> None:
        if self._trim:
            text = text.lstrip()
        if kind == "reasoning":  # its last white space is only known by what follows
            text = self._blank + text
            self._blank = text[len(text.rstrip()) :]
            text = text.rstrip()
        if not text:
            return
        self._trim = False
        if kind == "text":
            self._answered = self._answered or not text.isspace()
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last[0] == kind:
            self._pieces[-1] = (kind, str(last[1]) + text)
        else:
            self._pieces.append((kind, text))


def _machine(tokenizer: Any) -> TextStateMachine:
    return TextStateMachine(TRANSITIONS) if known(tokenizer) else make_text_state_machine(tokenizer)


def _initial(tokenizer: Any) -> str | None:
    return INITIAL if known(tokenizer) else tokenizer.response_initial_state


def _prose(state: str) -> str:
    """Where text goes that turned out to be no tag: what stands between messages is not shown."""
    return state if state == "reasoning" else "normal"
