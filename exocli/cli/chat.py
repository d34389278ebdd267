"""`exo chat`: a conversation in the terminal, every reply of which Ctrl-C stops.

Turns the flags into the parts that exocli/chat ties together; ends as its Ending says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from exocli import config
from exocli.cli import context, plugin_commands, pulling, render, signals
from exocli.cli.params import (
    backend_option,
    engine_options,
    local_option,
    model_option,
    option,
    pull_option,
    sampling_options,
    system_option,
    think_option,
)
from exocli.cli.render import Globals, pass_globals
from exocli.errors import UsageError

if TYPE_CHECKING:
    from exocli.chat.commands import Desk
    from exocli.chat.conversation import Ending
    from exocli.chat.editor import Editor
    from exocli.chat.store import Conversation, Store
    from exocli.chat.view import View
    from exocli.runtime.session import Session
    from exocli.types import Sampling


def _store() -> Store:
    from exocli.chat.store import Store

    return Store(config.data_dir("conversations"))


def _complete_id(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in _store().ids() if name.startswith(incomplete)]


@click.command()
@model_option
@backend_option
@system_option
@engine_options
@option("-c", "--continue", "last", is_flag=True, help="Go on with the last conversation.")
@option("--resume", metavar="ID", shell_complete=_complete_id, help="Go on with this conversation.")
@option("--no-save", is_flag=True, help="Keep nothing of it on disk.")
@pull_option
@local_option
@think_option
@sampling_options
@pass_globals
def chat(
    settings: Globals,
    model: str | None,
    backend: str | None,
    system: str | None,
    pairs: tuple[str, ...],
    last: bool,
    resume: str | None,
    no_save: bool,
    pull: bool,
    local: bool,
    think: bool | str | None,
    sampling: Sampling,
    max_tokens: int | None,
    stop: tuple[str, ...],
) -> int:
    """Talk with a model."""
    import asyncio

    from exocli.chat.commands import Desk
    from exocli.chat.store import Conversation
    from exocli.chat.transcript import Transcript
    from exocli.chat.view import View

    conversation = _earlier(last, resume)
    if conversation is not None:
        model, backend = model or conversation.model, backend or conversation.backend
    plugin_commands.warn_of_problems(settings)
    chosen, path = pulling.chosen(settings, model, backend, pairs, local=local, pull=pull)
    if conversation is None:
        conversation = Conversation(transcript=Transcript(chosen.system))
    if system is not None:
        conversation.transcript.system = system or None
    conversation.model = chosen.model
    conversation.backend = None if chosen.server else chosen.backend  # next time it may not run
    view = View(sys.stdout, sys.stderr, quiet=settings.quiet)
    desk = Desk(conversation=conversation, sampling=sampling, max_tokens=max_tokens, think=think)
    ending = asyncio.run(_converse(settings, chosen, path, desk, stop, view, keep=not no_save))
    if ending.signal is not None:
        signals.end_by(ending.signal)
    return ending.code


def _earlier(last: bool, resume: str | None) -> Conversation | None:
    if last and resume:
        raise UsageError("Give -c or --resume, not both.")
    if resume:
        return _store().find(resume)
    return _store().latest() if last else None


async def _converse(
    settings: Globals,
    chosen: context.Choice,
    path: str,
    desk: Desk,
    stop: tuple[str, ...],
    view: View,
    *,
    keep: bool,
) -> Ending:
    from exocli.chat.conversation import Chat
    from exocli.chat.terminal import Quiet

    person = sys.stdin.isatty()
    session = chosen.session(path, debug=settings.debug)
    desk.about = lambda: _about(chosen, session)
    quiet = Quiet(sys.stdin, sys.stdout) if person and not view.plain else None
    if person:
        _greet(view, chosen, desk.conversation)
    with quiet or nullcontext():
        return await Chat(
            session=session,
            desk=desk,
            stop=stop,
            view=view,
            make_editor=_editor_maker(view, person, keep),
            store=_store() if keep else None,
            person=person,
            quiet=quiet,
            verbose=settings.verbose > 0,
        ).run()


def _editor_maker(view: View, person: bool, keep: bool) -> Callable[[Callable[[], bool]], Editor]:
    from exocli.chat.commands import COMMANDS
    from exocli.chat.editor import LineEditor, TerminalEditor

    def make(just_stopped: Callable[[], bool]) -> Editor:
        if not person or view.plain:
            return LineEditor(sys.stdin.fileno(), sys.stderr if person else None)
        history = config.data_dir("conversations") / "history" if keep else None
        return TerminalEditor(sys.stdout, history, [f"/{name}" for name in COMMANDS], just_stopped)

    return make


def _greet(view: View, chosen: context.Choice, conversation: Conversation) -> None:
    from exocli.chat.shown import short

    view.note(
        f"{chosen.model} on {chosen.backend} · Ctrl-C stops a reply, Ctrl-D leaves, /help lists the rest"
    )
    turns = conversation.transcript.turns
    if turns:
        view.note(f'Going on with {conversation.id}, after "{short(turns[-2].text)}".')


def _about(chosen: context.Choice, session: Session) -> str:
    state = "loaded" if session.loaded else "loading" if session.loading else "not loaded"
    said = f"{chosen.model} on {chosen.backend} ({chosen.why}), {state}"
    return "\n  ".join([said, *render.fact_texts(session.facts)])
