"""A conversation as data: its turns, what is sent to the model, and what a reply's end does to them.

Pure: no files, no terminal, no engine. The one rule for a reply that did not run to its end is `settle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from exocli.errors import ExoError
from exocli.types import JSON, Finished, Message, to_json

Mark = Literal["", "stopped", "cut", "broken"]
"""How an answer ended: by itself, by Ctrl-C, at a limit of tokens, by an error."""

_MARKS: Mapping[str, Mark] = {"cancelled": "stopped", "length": "cut", "error": "broken"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One side's words, and what the model thought before them. `report` is what the engine said of an
    answer: usage, timing, cancel."""

    role: Literal["user", "assistant"]
    text: str
    thought: str = ""
    mark: Mark = ""
    report: Mapping[str, JSON] = field(default_factory=dict)


class Transcript:
    """`ask`, `again` or `go_on` open a reply, `settle` closes it; between replies the rest may be called.

    `taken_back` is the last question that left the conversation, by `settle` or `undo`, for the editor and
    /retry.
    """

    def __init__(self, system: str | None = None, turns: tuple[Turn, ...] = ()) -> None:
        self.system = system
        self.turns = turns
        self.taken_back: str | None = None
        self._before = turns

    # -------------------------------------------------------------------------- opening a reply

    def ask(self, text: str) -> None:
        """The user says something."""
        self._before = self.turns
        self.taken_back = None
        self.turns = (*self.turns, Turn(role="user", text=text))

    def again(self) -> None:
        """Answer the last question anew, be it one that was taken back. Raises ExoError if there is none."""
        if self.taken_back is not None:
            self.ask(self.taken_back)
            return
        if not self.turns:
            raise ExoError("There is no question to answer again.")
        self._before = self.turns
        self.turns = self.turns[:-1]

    def go_on(self) -> None:
        """Continue the last answer. Raises ExoError if there is none."""
        if not self.turns:
            raise ExoError("There is no answer to continue.")
        self._before = self.turns

    @property
    def continuing(self) -> bool:
        """The open reply goes on from an answer instead of following a question."""
        return bool(self.turns) and self.turns[-1].role == "assistant"

    def messages(self) -> tuple[Message, ...]:
        """What the model is sent."""
        head = (Message(role="system", content=self.system),) if self.system else ()
        return (
            *head,
            *(Message(role=t.role, content=t.text, reasoning=t.thought or None) for t in self.turns),
        )

    # -------------------------------------------------------------------------- closing a reply

    def settle(self, text: str, finished: Finished, thought: str = "") -> None:
        """Take in what came of the open reply.

        With text: it stays as the assistant's turn, marked with how it ended; so does a thought that a limit
        cut, for `go_on`. Without: the conversation is what it was before, and a question that leaves by this
        is `taken_back`.
        """
        if not text.strip() and not (thought and finished.reason == "length"):
            gone = self.turns[len(self._before) :]
            self.taken_back = gone[0].text if gone else None
            self.turns = self._before
            return
        report = {
            key: value
            for key, value in to_json(finished).items()
            if key in ("reason", "usage", "timing", "cancel", "error")
        }
        head = self.turns
        if self.continuing:
            text, thought = self.turns[-1].text + text, self.turns[-1].thought + thought
            head = self.turns[:-1]
        mark = _MARKS.get(finished.reason, "")
        answer = Turn(role="assistant", text=text, thought=thought, mark=mark, report=report)
        self.turns = (*head, answer)

    # ------------------------------------------------------------------------- between replies

    def undo(self) -> str:
        """Drop the last question with its answer; → the question. Raises ExoError if there is none."""
        if not self.turns:
            raise ExoError("There is nothing to take back.")
        question = self.turns[-2].text
        self.turns = self.turns[:-2]
        self.taken_back = question
        return question

    def clear(self) -> None:
        """Forget every turn; the system prompt stays."""
        self.turns = ()
        self.taken_back = None

    # --------------------------------------------------------------------------------- as data

    def to_data(self) -> dict[str, JSON]:
        """The plain JSON form, for files."""
        turns = []
        for turn in self.turns:
            data = {"role": turn.role, "text": turn.text, "thought": turn.thought, "mark": turn.mark}
            turns.append({key: value for key, value in (data | {"report": turn.report}).items() if value})
        return {"system": self.system, "turns": turns}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Transcript:
        """The inverse of to_data. Raises ValueError, TypeError or KeyError for what is none."""
        turns = tuple(
            Turn(
                role=turn["role"],
                text=str(turn.get("text", "")),
                thought=str(turn.get("thought", "")),
                mark=turn.get("mark", ""),
                report=dict(turn.get("report", {})),
            )
            for turn in data["turns"]
        )
        if [turn.role for turn in turns] != ["user", "assistant"] * (len(turns) // 2):
            raise ValueError("its turns do not alternate")
        system = data.get("system")
        return cls(str(system) if system is not None else None, turns)

    def to_markdown(self) -> str:
        """For /save: the conversation to read."""
        parts = [f"> {line}" for line in (self.system or "").splitlines()]
        for turn in self.turns:
            parts.append(f"\n## {'You' if turn.role == 'user' else 'Model'}\n\n{turn.text}")
            if turn.mark:
                parts.append(f"\n[{MARK_TEXT[turn.mark]}]")
        return "\n".join(parts).strip() + "\n"


MARK_TEXT: Mapping[Mark, str] = {
    "stopped": "stopped",
    "cut": "cut off at the limit of tokens",
    "broken": "broken off by an error",
}
