"""The slash commands. Each changes the conversation or its settings and says what is to happen next.

No terminal and no engine here: a command answers with an Effect, conversation.py carries it out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_type_hints

from exocli import options
from exocli.chat.shown import short
from exocli.chat.store import Conversation, write_whole
from exocli.cli.params import require_sampling
from exocli.errors import ExoError, UsageError
from exocli.types import Sampling

_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?\s*", re.DOTALL)
_MEANT = {"exit": "exit", "quit": "exit", "/quit": "exit", "/bye": "exit", "/": "help", "/?": "help"}
_HINTS = {name: hint for name, hint in get_type_hints(Sampling).items() if name != "logit_bias"}
_HINTS |= {"max_tokens": int | None, "think": bool | Literal["low", "medium", "high"] | None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """`say` goes on the screen; then `do`: ask for the next message ("stay"), let the model reply, leave,
    or begin a new conversation."""

    say: str = ""
    do: Literal["stay", "reply", "leave", "new"] = "stay"


@dataclass(kw_only=True)
class Desk:
    """What commands may touch. `about` tells of model and engine."""

    conversation: Conversation
    sampling: Sampling
    max_tokens: int | None
    think: bool | str | None = None
    about: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True)
class Command:
    usage: str
    help: str
    run: Callable[[Desk, str], Effect]


def parse(text: str) -> tuple[str, str] | None:
    """("set", "seed 1") of "/set seed 1"; None for a message. "/etc/hosts …" is a message, and so is what
    begins with a blank. Words that leave other programs leave this one, a slash alone asks for help."""
    if (word := text.rstrip().lower()) in _MEANT:
        return _MEANT[word], ""
    match = _COMMAND.fullmatch(text)
    return (match[1], (match[2] or "").strip()) if match else None


def run(desk: Desk, name: str, argument: str) -> Effect:
    """Raises ExoError for what cannot be done."""
    command = COMMANDS.get(name)
    if command is None:
        close = get_close_matches(name, COMMANDS, n=1)
        guess = f"did you mean /{close[0]}?" if close else "/help lists them."
        raise UsageError(f"There is no command /{name}; {guess} (A message may begin with a blank.)")
    return command.run(desk, argument)


# ---------------------------------------------------------------------------------------- the commands


def _help(desk: Desk, argument: str) -> Effect:
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:<{width}}  {command.help}" for command in COMMANDS.values()]
    return Effect(say="\n".join([*lines, "", _KEYS]))


_KEYS = """\
Enter sends, Alt-Enter begins a new line, a paste is one message. Ctrl-C stops a reply, Ctrl-D leaves. A
question that was stopped before its answer began is offered again: Enter sends it, Tab edits it.
"exo chat -c" goes on with the last conversation."""


def _exit(desk: Desk, argument: str) -> Effect:
    return Effect(do="leave")


def _clear(desk: Desk, argument: str) -> Effect:
    return Effect(say="A new conversation; the model has forgotten the old one.", do="new")


def _system(desk: Desk, argument: str) -> Effect:
    transcript = desk.conversation.transcript
    if argument:
        transcript.system = None if argument == "none" else argument
    return Effect(say=f"System prompt: {transcript.system or 'none'}")


def _retry(desk: Desk, argument: str) -> Effect:
    desk.conversation.transcript.again()
    return Effect(do="reply")


def _undo(desk: Desk, argument: str) -> Effect:
    question = desk.conversation.transcript.undo()
    return Effect(say=f'Took back "{short(question)}" and its answer.')


def _continue(desk: Desk, argument: str) -> Effect:
    desk.conversation.transcript.go_on()
    return Effect(do="reply")


def _save(desk: Desk, argument: str) -> Effect:
    if not argument:
        raise UsageError("Give a file: /save talk.md, or talk.json for programs.")
    path = Path(argument).expanduser()
    transcript = desk.conversation.transcript
    text = transcript.to_markdown()
    if path.suffix == ".json":
        text = json.dumps(transcript.to_data(), ensure_ascii=False, indent=1) + "\n"
    if path.exists():
        raise UsageError(f"{path} exists already; give another name.")
    try:
        write_whole(path, text)
    except OSError as error:
        raise ExoError(f"{path} cannot be written: {error.strerror or error}.") from error
    return Effect(say=f"Saved to {path}.")


def _set(desk: Desk, argument: str) -> Effect:
    name, _, value = argument.partition(" ")
    name = name.replace("-", "_")
    if name and name not in _HINTS:
        raise UsageError(f"There is no setting {name}; there are: {', '.join(_HINTS)}.")
    if value:
        parsed = options.parse(_HINTS[name], value.strip(), name)
        require_sampling(f"/set {name}", name, parsed)
        if hasattr(desk, name):
            setattr(desk, name, parsed)
        else:
            desk.sampling = replace(desk.sampling, **{name: parsed})
    shown = [name] if name else list(_HINTS)
    return Effect(say="\n".join(f"{key} = {_shown(_value(desk, key))}" for key in shown))


def _value(desk: Desk, name: str) -> Any:
    return getattr(desk if hasattr(desk, name) else desk.sampling, name)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "the model's own" if value is None else str(value)


def _model(desk: Desk, argument: str) -> Effect:
    if argument:
        raise UsageError(f'A conversation keeps its model; leave, and start "exo chat -c -m {argument}".')
    return Effect(say=desk.about())


COMMANDS = {
    "help": Command("/help", "this list", _help),
    "exit": Command("/exit", "leave, as Ctrl-D does", _exit),
    "clear": Command("/clear", "begin a new conversation", _clear),
    "retry": Command("/retry", "answer the last question again, or send what was taken back", _retry),
    "continue": Command("/continue", "go on from where the last answer stopped", _continue),
    "undo": Command("/undo", "take back the last question and its answer", _undo),
    "system": Command(
        "/system TEXT", 'set the system prompt ("none" removes it); without TEXT: show it', _system
    ),
    "set": Command("/set NAME VALUE", "temperature 0.7, max_tokens 200, think off …; alone: show all", _set),
    "save": Command("/save FILE", "write the conversation as Markdown, or as JSON to FILE.json", _save),
    "model": Command("/model", "what is answering", _model),
}
