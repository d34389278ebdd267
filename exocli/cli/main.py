"""The program `exo`: finds the command, runs it, and turns whatever happened into an exit code.

A command's module is imported when it is run, never to list it: `exo --help` and Tab stay fast. Only
this module knows about exit codes of ordinary commands; `run`, `chat` and `serve` end by their own rules.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import CompletionItem

from exocli.cli import plugin_commands, signals
from exocli.cli.params import F, option
from exocli.cli.render import Globals
from exocli.errors import ExoError

COMMANDS: dict[str, tuple[str, str]] = {
    "chat": ("exocli.cli.chat:chat", "Talk with a model."),
    "run": ("exocli.cli.run:run", "Answer one PROMPT."),
    "embed": (
        "exocli.cli.embed:embed",
        "Print a vector for each TEXT (else for each line of files or of standard input), one a line.",
    ),
    "bench": ("exocli.cli.bench:bench", "Measure a backend with a model."),
    "serve": ("exocli.cli.serve:serve", "Serve models over HTTP: the OpenAI, Anthropic and Ollama APIs."),
    "ps": ("exocli.cli.ps:ps", "Show what a running server has loaded and what it works on."),
    "cancel": ("exocli.cli.cancel:cancel", "Cancel a request of a running server."),
    "stop": ("exocli.cli.stop:stop", "Unload a model of a running server."),
    "models": ("exocli.cli.models:models", "List, fetch, look at and remove models."),
    "backends": ("exocli.cli.backends:backends", "What can run models here, and whether it works."),
    "plugins": ("exocli.cli.plugins_cmd:plugins", "List, check, write and test plugins."),
    "doctor": ("exocli.cli.doctor:doctor", "Look for what is missing or slow on this machine."),
    "config": ("exocli.cli.config_cmd:config", "Show and change settings."),
    "completions": ("exocli.cli.completions:completions", "Print the script that makes Tab work in a shell."),
}
"""Name → ("module:command", the line in `exo --help`). A test holds the lines to the commands' own."""

WHAT_NEXT = """\
exo chat            talk with a model on this machine; the default one is fetched at the first start
exo run "PROMPT"    one reply on standard output, for scripts
exo --help          everything else"""


class _Lazy(click.Group):
    """A group that knows its commands by name and imports the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [
            *COMMANDS,
            *(n for n in plugin_commands.find(ctx.ensure_object(Globals)) if n not in COMMANDS),
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name][0].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return _with_output_flags(command)
        offered = plugin_commands.find(ctx.ensure_object(Globals)).get(cmd_name)
        return _with_output_flags(_load_plugin_command(offered)) if offered is not None else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None:
            if name.startswith("-"):
                raise click.UsageError(f"There is no option {name}.", ctx)
            close = get_close_matches(name, self.list_commands(ctx), n=1)
            guess = f' (did you mean "{close[0]}"?)' if close else ""
            raise click.UsageError(f'There is no command "{name}"{guess}.', ctx)
        return name, command, args[1:]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        offered = plugin_commands.find(ctx.ensure_object(Globals))
        lines = {name: one.help for name, one in offered.items()} | {n: t for n, (_, t) in COMMANDS.items()}
        found = [CompletionItem(n, help=t) for n, t in lines.items() if n.startswith(incomplete)]
        return found + super(click.Group, self).shell_complete(ctx, incomplete)  # its flags

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        offered = plugin_commands.find(ctx.ensure_object(Globals))
        own = [(name, text) for name, (_, text) in COMMANDS.items()]
        others = [(name, one.help) for name, one in offered.items() if name not in COMMANDS]
        for title, rows in (("Commands", own), ("Commands of plugins", others)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _load_plugin_command(offered: plugin_commands.PluginCommand) -> click.Command:
    """Raises ExoError naming the distribution, whatever its module does."""
    module, _, attribute = offered.command.partition(":")
    try:
        command = getattr(importlib.import_module(module), attribute)
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise ExoError(f'The command "{offered.name}" of {offered.distribution} fails: {reason}.') from error
    if not isinstance(command, click.Command):
        raise ExoError(f'The command "{offered.name}" of {offered.distribution} is not a click command.')
    return command


# ------------------------------------------------------------------------------------ global flags


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        setattr(ctx.ensure_object(Globals), str(param.name), value)


def _without_plugins(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:  # through the environment, so that worker processes see it too
        os.environ["EXO_NO_PLUGINS"] = "1"


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"exo {version('exocli')}")
        ctx.exit()


_OUTPUT_FLAGS = (
    option("-v", "--verbose", count=True, expose_value=False, callback=_remember, help="Say more."),
    option(
        "-q", "--quiet", is_flag=True, expose_value=False, callback=_remember, help="Say only the result."
    ),
    option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_remember,
        help="Show tracebacks and workers' logs.",
    ),
)


def _output_flags(command: F) -> F:
    for add in reversed(_OUTPUT_FLAGS):
        command = add(command)
    return command


def _with_output_flags(command: click.Command) -> click.Command:
    """`exo run -v` is `exo -v run`; a command that has such a flag of its own keeps it."""
    taken = {text for param in command.params for text in (*param.opts, *param.secondary_opts)}
    for add in reversed(_OUTPUT_FLAGS):
        holder = click.Command(None)
        add(holder)
        (param,) = holder.params
        if isinstance(param, click.Option) and not taken & {*param.opts}:
            param.hidden = True
            command.params.append(param)
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _with_output_flags(below)
    return command


def build() -> click.Group:
    """A fresh command tree."""

    @click.group(
        cls=_Lazy,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog="Every flag has a variable in the environment: --max-tokens is EXO_MAX_TOKENS.",
    )
    @_output_flags
    @option(
        "--no-plugins",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_without_plugins,
        help="Leave out the plugins of others.",
    )
    @click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_version,
        help="Show the version.",
    )
    @click.pass_context
    def exo(ctx: click.Context) -> None:
        """Run language models, here or elsewhere, and stop them at once."""
        if ctx.invoked_subcommand is None:
            click.echo(WHAT_NEXT)

    return exo


# -------------------------------------------------------------------------------------------- main


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code. A signal that ends a command ends the process by itself."""
    signals.adopt_standard_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    if "_EXO_COMPLETE" in os.environ:
        from exocli.cli import completions

        return completions.answer(build(), args)
    signals.raise_on_terminate()
    settings = Globals()
    try:
        code = _run(args, settings)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        signals.end_by(signal.SIGINT)
    except signals.Terminated:
        signals.end_by(signal.SIGTERM)
    except BrokenPipeError:
        signals.end_by(signal.SIGPIPE)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except Exception as error:
        if settings.debug:
            import traceback

            traceback.print_exc()
        code = _report(error)
        signals.give_up_output()
        return code


def _run(args: list[str], settings: Globals) -> int:
    try:
        with build().make_context("exo", args, obj=settings) as ctx:
            result = ctx.command.invoke(ctx)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    return result if isinstance(result, int) else 0


def _report(error: Exception) -> int:
    """One line on stderr, and the exit code."""
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx is not None else "exo"
        message = f'{error.format_message().rstrip(".")}; see "{where} --help".'
        code = error.exit_code
    elif isinstance(error, click.ClickException):
        message, code = error.format_message(), error.exit_code
    elif isinstance(error, ExoError):
        message, code = error.message, error.exit_code
    elif isinstance(error, OSError) and error.strerror:
        subject = f"{error.filename}: " if error.filename else ""
        if not subject and error.errno in (errno.ENOSPC, errno.EBADF, errno.EIO):
            subject = "Standard output cannot be written: "  # our files' errors are ExoErrors by now
        message, code = f"{subject}{error.strerror}.", 1
    else:
        message = f"unexpected {type(error).__name__}: {error} (--debug shows where)."
        code = 1
    click.echo(f"exo: {' '.join(message.split())}", err=True)
    return code
