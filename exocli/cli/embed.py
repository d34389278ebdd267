"""`exo embed`: a vector for each text, one a line, for scripts.

Texts are the arguments, else the lines of files, else those of standard input. Ctrl-C ends it as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from exocli.cli import prompt_input, pulling
from exocli.cli.params import (
    Count,
    Words,
    backend_option,
    complete_model,
    engine_options,
    json_option,
    local_option,
    option,
    pull_option,
)
from exocli.cli.render import Globals, pass_globals
from exocli.errors import UsageError, from_dict

if TYPE_CHECKING:
    from exocli.runtime.session import Session
    from exocli.types import Embedding, Finished, Request

DEFAULT_EMBEDDER = "minilm"
"""What `exo embed` asks where -m names no model: the config's is for chats, and cannot."""


@click.command()
@click.argument("texts", type=Words(), nargs=-1, metavar="[TEXT]...")
@option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=complete_model,
    help=f"Which model; {DEFAULT_EMBEDDER} by default.",
)
@backend_option
@engine_options
@option("-f", "--file", "files", multiple=True, metavar="FILE", type=click.Path(), help="A text a line.")
@option("--dimensions", type=Count(min=1), metavar="N", help="Shorter vectors, if the model can.")
@option("--truncate", is_flag=True, help="Cut texts that are too long for the model.")
@json_option
@pull_option
@local_option
@pass_globals
def embed(
    settings: Globals,
    texts: tuple[str, ...],
    model: str | None,
    backend: str | None,
    pairs: tuple[str, ...],
    files: tuple[str, ...],
    dimensions: int | None,
    truncate: bool,
    as_json: bool,
    pull: bool,
    local: bool,
) -> int:
    """Print a vector for each TEXT (else for each line of files or of standard input), one a line."""
    import asyncio

    from exocli.types import Request

    inputs = texts + prompt_input.lines(files, read_stdin=not texts and not files, note=settings.note)
    if not inputs:
        raise UsageError('There is no text: give one as in exo embed "a sentence", or pipe lines in.')
    model = model or DEFAULT_EMBEDDER
    chosen, path = pulling.chosen(settings, model, backend, pairs, local=local, pull=pull)
    request = Request(
        task="embed", model=chosen.model, inputs=inputs, dimensions=dimensions, truncate=truncate
    )
    session = chosen.session(path, debug=settings.debug)
    return asyncio.run(_run(settings, session, request, as_json))


async def _run(settings: Globals, session: Session, request: Request, as_json: bool) -> int:
    from exocli.cli.interrupting import Interruptible
    from exocli.cli.progress import reply_progress
    from exocli.types import Embedding, Finished, to_json

    guard = Interruptible(session)
    in_order = _InOrder()

    async def answer() -> Finished | None:
        finished = None
        with reply_progress(settings) as show:
            async for event in session.stream(request, guard.cancel):
                show(event)
                if as_json:
                    await guard.output.write(_line(to_json(event)))
                elif isinstance(event, Embedding):
                    for vector in in_order.put(event):
                        await guard.output.write(_line(vector))
                if isinstance(event, Finished):
                    finished = event
        return finished

    finished = await guard.run(answer())
    if finished is not None and finished.error is not None:
        raise from_dict(finished.error)
    return 0


class _InOrder:
    """Vectors come in any order; line N is of text N."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[float, ...]] = {}
        self._next = 0

    def put(self, event: Embedding) -> Iterator[tuple[float, ...]]:
        """The vectors whose turn has come."""
        self._waiting[event.index] = event.vector
        while self._next in self._waiting:
            yield self._waiting.pop(self._next)
            self._next += 1


def _line(data: object) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"
