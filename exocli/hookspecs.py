"""The hooks that a plugin implements, under the entry-point group `exo`. Answers are plain data."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from exocli.backend import BackendSpec, CommandSpec, RouteSpec

PROJECT = "exo"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def exo_backends() -> Iterable[BackendSpec]:
    """Backends this plugin offers. Import nothing heavy. Since API 1."""
    raise AssertionError("a hook specification is never called")


@hookspec
def exo_commands() -> Iterable[CommandSpec]:
    """Commands this plugin adds to `exo`. Since API 1."""
    raise AssertionError("a hook specification is never called")


@hookspec
def exo_server_routes() -> Iterable[RouteSpec]:
    """Routes this plugin adds to `exo serve`, under /x/NAME/. Since API 1."""
    raise AssertionError("a hook specification is never called")
