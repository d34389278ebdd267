"""The flags that several commands share, and what they complete to. Turns text into values, runs nothing.

Every flag has its variable: `--max-tokens` is EXO_MAX_TOKENS. `option` sees to it; use it, not click's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from exocli.errors import UsageError

if TYPE_CHECKING:
    from exocli.types import Sampling

F = TypeVar("F", bound=Callable[..., Any])


class _Option(click.Option):
    """An error names what the person wrote: the flag, or its variable."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        source = ctx.get_parameter_source(self.name or "") if ctx is not None else None
        if source is ParameterSource.ENVIRONMENT:
            return str(self.envvar)
        return super().get_error_hint(ctx)


def option(*declarations: str, **attributes: Any) -> Callable[[F], F]:
    """click.option with the variable EXO_NAME after its long form."""
    long = next(text for text in declarations if text.startswith("--")).split("/")[0]
    attributes.setdefault("envvar", "EXO_" + long.removeprefix("--").upper().replace("-", "_"))
    return click.option(*declarations, cls=_Option, **attributes)


# ------------------------------------------------------------------------------------------- types


class Number(click.FloatRange):
    """A finite number: click's range lets NaN through, which compares with nothing."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Count(click.IntRange):
    """A whole number within a range, called so in an error: to click it is an "integer range"."""

    name = "whole number"


class Words(click.types.StringParamType):
    """Text for a model or a file: bytes that were not UTF-8 arrive as lone surrogates, which are no text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            self.fail("it is not UTF-8 text.", param, ctx)
        return text


class Pair(Words):
    """KEY=VALUE, as text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from exocli import options

        text = super().convert(value, param, ctx)
        try:
            options.split_pairs([text])
        except UsageError as error:
            self.fail(error.message, param, ctx)
        return text


class Whole(Words):
    """Text that an environment variable does not split at blanks: a stop string may hold some."""

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return [rv] if rv else []


# --------------------------------------------------------------------------------------- completion


def _offer(names: dict[str, str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name, help=text) for name, text in names.items() if name.startswith(incomplete)]


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Aliases of the config, models that are here, built-in names; a path completes as a file."""
    from exocli import names
    from exocli.cli import context

    if names.is_path(incomplete):
        return [CompletionItem(incomplete, type="file")]
    found = {name: str(entry.get("model", "")) for name, entry in context.model_table().items()}
    for source in context.sources().values():
        for info in source.models():
            found.setdefault(info.name, info.source)
    for name, text in context.aliases().items():
        found.setdefault(name, text)
    seen = {backend: list(catalog.models()) for backend, catalog in context.catalogs().items()}
    if (wanted := ctx.params.get("backend")) in seen:
        found = {}  # here only a server's own names make sense
    for backend, infos in seen.items():
        if wanted in (None, backend):
            found.update({info.name: info.source for info in infos if info.name not in found})
    return _offer(found, incomplete)


def complete_backend(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from exocli import plugins

    return _offer({name: r.spec.summary for name, r in plugins.manager().backends.items()}, incomplete)


def complete_engine_option(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """`-o`: the keys of the backend named before it, else of all; after `KEY=` the values it takes."""
    from dataclasses import fields
    from typing import get_type_hints

    from exocli import options, plugins
    from exocli.backend import load_object

    wanted = ctx.params.get("backend")
    found: dict[str, str] = {}
    for name, registered in plugins.manager().backends.items():
        if registered.spec.open_options is None or wanted not in (None, name):
            continue
        cls = load_object(registered.spec.open_options)
        hints = get_type_hints(cls)
        for field in fields(cls):
            key, hint = field.name, hints[field.name]
            if options.is_secret(key):
                continue
            if incomplete.startswith(f"{key}="):
                found.update({f"{key}={value}": "" for value in options.choices(hint)})
            else:
                found.setdefault(f"{key}=", f"{name}: {options.describe(hint)}")
    return _offer(found, incomplete)


# ----------------------------------------------------------------------------------------- decorators


def model_option(fn: F) -> F:
    return option("-m", "--model", metavar="MODEL", shell_complete=complete_model, help="Which model.")(fn)


def backend_option(fn: F) -> F:
    return option(
        "-b", "--backend", metavar="BACKEND", shell_complete=complete_backend, help="Which backend."
    )(fn)


def system_option(fn: F) -> F:
    return option("-s", "--system", type=Words(), metavar="TEXT", help="The system prompt.")(fn)


_FORCE = "exocli.force"


def engine_options(fn: F) -> F:
    """`pairs`: the texts after -o, for `context.choose`; --force is one of them under a name of its own."""
    pairs = option(
        "-o",
        "--option",
        "pairs",
        type=Pair(),
        metavar="KEY=VALUE",
        multiple=True,
        shell_complete=complete_engine_option,
        callback=lambda ctx, param, value: (*value, "force=true") if ctx.meta.get(_FORCE) else value,
        help='An option of the backend; "exo backends -v" lists them.',
    )
    force = option(
        "--force",
        is_flag=True,
        is_eager=True,  # so that it is known when the pairs are read
        expose_value=False,
        callback=lambda ctx, param, value: ctx.meta.update({_FORCE: value}),
        help="Load the model even if it seems not to fit in memory.",
    )
    return pairs(force(fn))


def pull_option(fn: F) -> F:
    return option("--pull", is_flag=True, help="Fetch the model without asking if it is not here.")(fn)


def local_option(fn: F) -> F:
    return option("--local", is_flag=True, help="Run it here even if a running exo serve has the model.")(fn)


def json_option(fn: F) -> F:
    return option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(fn)


def think_option(fn: F) -> F:
    """Gives the command `think: bool | str | None`, as Request.reasoning has it."""
    return option(
        "--think",
        type=click.Choice(["on", "off", "low", "medium", "high"]),
        callback=lambda ctx, param, value: {"on": True, "off": False}.get(value, value),
        metavar="HOW",
        help="How much a model that can think does so first: on, off, low, medium or high.",
    )(fn)


_SAMPLING = (
    ("--temperature", Number(min=0), "T", "0 picks the likeliest token; higher is more varied."),
    ("--top-p", Number(min=0, max=1, min_open=True), "P", "Draw from the likeliest tokens that make up P."),
    ("--top-k", Count(min=0), "N", "Draw from the N likeliest tokens; 0 is off."),
    ("--min-p", Number(min=0, max=1), "P", "Leave out tokens below P times the likeliest."),
    ("--seed", Count(min=0, max=2**63 - 1), "N", "The same seed draws the same reply."),
)


_RANGES: dict[str, Any] = {
    **{flag.removeprefix("--").replace("-", "_"): kind for flag, kind, _, _ in _SAMPLING},
    "max_tokens": Count(min=1),
    "repetition_penalty": Number(min=0, min_open=True),
    "presence_penalty": Number(min=-2, max=2),
    "frequency_penalty": Number(min=-2, max=2),
}


def require_sampling(where: str, name: str, value: Any) -> None:
    """Raises UsageError, naming `where`, for a value that no reply could be drawn with: what the flag of
    this name would not take, or what is a request's alone."""
    if value is None:
        return
    if name == "logit_bias":
        raise UsageError(f"{where}: a bias is given with a request, not in the config.")
    if (kind := _RANGES.get(name)) is not None:
        try:
            kind.convert(value, None, None)
        except click.BadParameter as error:
            raise UsageError(f"{where}: {error.message}") from error


def sampling_options(fn: F) -> F:
    """Gives the command `sampling: Sampling`, `max_tokens: int | None` and `stop: tuple[str, ...]`."""

    @wraps(fn)
    def command(
        *args: Any,
        temperature: float | None,
        top_p: float | None,
        top_k: int | None,
        min_p: float | None,
        seed: int | None,
        **rest: Any,
    ) -> Any:
        from exocli.types import Sampling

        sampling: Sampling = Sampling(
            temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed
        )
        return fn(*args, sampling=sampling, **rest)

    decorated: Any = option(
        "--stop", type=Whole(), multiple=True, metavar="S", help="End the reply before this text."
    )(command)
    for name, kind, metavar, text in reversed(_SAMPLING):
        decorated = option(name, type=kind, metavar=metavar, help=text)(decorated)
    return option(  # type: ignore[no-any-return]
        "--max-tokens", type=Count(min=1), metavar="N", help="End the reply after N tokens."
    )(decorated)
