"""What this plugin offers. exo imports this module to list it: import nothing heavy here."""

from collections.abc import Iterable

from exocli import BackendSpec, Capabilities, CommandSpec, hookimpl


@hookimpl
def exo_backends() -> Iterable[BackendSpec]:
    yield BackendSpec(
        name="sample",
        summary="Repeats what it is told",
        api=1,
        protocol="stream",
        place="inline",  # "worker" gives the engine a process of its own
        open="exo_sample.engine:open_engine",
        open_options="exo_sample.engine:Options",
        capabilities=Capabilities(max_concurrency=4),
    )


@hookimpl
def exo_commands() -> Iterable[CommandSpec]:
    yield CommandSpec(
        name="sample-hello",
        help="Say hello, from a plugin.",
        command="exo_sample.command:hello",
    )
