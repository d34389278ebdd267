"""Finds plugins, loads each under its own guard, and answers who offers what.

Built-ins come through the same entry points as third parties. A plugin that fails in any way is
reported by name, distribution, version and reason; everything else works.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

import pluggy

from exocli import config, hookspecs
from exocli.backend import API, BackendSpec, CommandSpec, RouteSpec
from exocli.errors import BackendNotFound, ExoError

GROUP = "exo"
HOME = "exocli"
"""The distribution whose plugins are the built-ins."""

Spec = TypeVar("Spec", BackendSpec, CommandSpec, RouteSpec)


class PluginProblem(ExoError):
    """With EXO_STRICT_PLUGINS=1 any problem of a plugin is fatal."""

    code = "plugin"


@dataclass(frozen=True, slots=True)
class Problem:
    plugin: str
    distribution: str
    version: str
    reason: str

    def __str__(self) -> str:
        return f'Plugin "{self.plugin}" of {self.distribution} {self.version}: {self.reason}'


@dataclass(frozen=True, slots=True)
class Registered(Generic[Spec]):
    """A spec and where it comes from. `name` is what it is reached by: its own name, or
    DISTRIBUTION:NAME where another one holds that."""

    name: str
    spec: Spec
    distribution: str
    version: str
    plugin: str = ""
    """The entry point's name."""


@dataclass
class PluginManager:
    backends: dict[str, Registered[BackendSpec]] = field(default_factory=dict)
    commands: dict[str, Registered[CommandSpec]] = field(default_factory=dict)
    routes: dict[str, Registered[RouteSpec]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    loaded: list[tuple[str, str, str]] = field(default_factory=list)
    """(plugin, distribution, version) of each that loaded."""


def _origin(point: EntryPoint) -> tuple[str, str]:
    dist = point.dist
    return (dist.name, dist.version) if dist is not None else ("unknown", "?")


def _wanted(point: EntryPoint) -> bool:
    distribution, _ = _origin(point)
    if distribution == HOME:
        return True
    if os.environ.get("EXO_NO_PLUGINS", "").lower() in ("1", "true", "yes"):
        return False
    names = {point.name, distribution}
    allowed = os.environ.get("EXO_PLUGINS")
    if allowed is not None and not names & {name.strip() for name in allowed.split(",")}:
        return False
    return not names & set(config.get("plugins.disabled", ()))


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Loader:
    """One pass over the entry points. Whatever a plugin raises, SystemExit and KeyboardInterrupt at
    import included, becomes a Problem: a plugin must not end the program that lists it."""

    def __init__(self) -> None:
        self.pm = pluggy.PluginManager(hookspecs.PROJECT)
        self.pm.add_hookspecs(hookspecs)
        self.out = PluginManager()

    def problem(self, plugin: str, origin: tuple[str, str], reason: str) -> None:
        self.out.problems.append(Problem(plugin, *origin, reason))

    def load(self, points: Iterable[EntryPoint]) -> PluginManager:
        # Built-ins first: a name goes to the first who asks.
        order = sorted(points, key=lambda p: (_origin(p)[0] != HOME, *_origin(p), p.name))
        for point in order:
            if _wanted(point):
                self._load_one(point)
        return self.out

    def _load_one(self, point: EntryPoint) -> None:
        origin = _origin(point)
        try:
            module = point.load()
        except BaseException as error:
            return self.problem(point.name, origin, f"cannot be imported ({_reason(error)})")
        key = f"{origin[0]}:{point.name}"
        try:
            self.pm.register(module, name=key)
        except BaseException as error:
            # register() is not atomic: hooks before the faulty one are in already.
            if self.pm.has_plugin(key):
                self.pm.unregister(name=key)
            reason = str(error).splitlines()[-1] if isinstance(error, pluggy.PluginValidationError) else ""
            return self.problem(point.name, origin, f"wrong hook signature ({reason or _reason(error)})")
        known = {"exo_backends", "exo_commands", "exo_server_routes"}
        hooks = {n for n in dir(module) if n.startswith("exo_") and hasattr(getattr(module, n), "exo_impl")}
        for name in sorted(hooks - known):
            self.problem(point.name, origin, f'implements "{name}", which is not a hook of this version')
        before = len(self.out.problems)
        for hook, kind, table in (
            ("exo_backends", BackendSpec, self.out.backends),
            ("exo_commands", CommandSpec, self.out.commands),
            ("exo_server_routes", RouteSpec, self.out.routes),
        ):
            self._collect(module, key, point.name, origin, hook, kind, table)
        if hooks & known and len(self.out.problems) == before:
            self.out.loaded.append((point.name, *origin))
        elif not hooks:
            self.problem(point.name, origin, "implements no hook of exo")

    def _collect(
        self,
        module: Any,
        key: str,
        plugin: str,
        origin: tuple[str, str],
        hook: str,
        kind: type[Any],
        table: dict[str, Registered[Any]],
    ) -> None:
        caller = getattr(self.pm.hook, hook)
        # Each plugin by itself, so that one that raises does not hide the others' answers.
        only = [p for name, p in self.pm.list_name_plugin() if name != key]
        try:
            answers = self.pm.subset_hook_caller(hook, only)() if only else caller()
            specs = [spec for answer in answers for spec in answer]
        except BaseException as error:
            return self.problem(plugin, origin, f"{hook} failed ({_reason(error)})")
        for spec in specs:
            if not isinstance(spec, kind):
                self.problem(
                    plugin, origin, f"{hook} answered a {type(spec).__name__}, not a {kind.__name__}"
                )
            elif isinstance(spec, BackendSpec) and spec.api != API:
                text = f'backend "{spec.name}" is written for plugin API {spec.api}, this is {API}'
                self.problem(plugin, origin, text)
            else:
                self._add(plugin, origin, spec, table)

    def _add(
        self, plugin: str, origin: tuple[str, str], spec: Any, table: dict[str, Registered[Any]]
    ) -> None:
        name = spec.name
        holder = table.get(name)
        if holder is not None:
            full = f"{origin[0]}:{name}"
            what = type(spec).__name__.removesuffix("Spec").lower()
            if full in table:
                return self.problem(plugin, origin, f'offers the {what} "{name}" twice')
            text = f'the {what} "{name}" belongs to {holder.distribution} already; this one is "{full}"'
            self.problem(plugin, origin, text)
            name = full
        table[name] = Registered(name, spec, *origin, plugin)
        return None


@cache
def manager() -> PluginManager:
    """All plugins, loaded once a process. Raises PluginProblem under EXO_STRICT_PLUGINS=1."""
    found = _Loader().load(entry_points(group=GROUP))
    if found.problems and os.environ.get("EXO_STRICT_PLUGINS", "").lower() in ("1", "true", "yes"):
        raise PluginProblem(str(found.problems[0]))
    return found


def backend(name: str) -> BackendSpec:
    """Raises BackendNotFound that lists the names there are."""
    found = manager().backends.get(name)
    if found is None:
        names = ", ".join(sorted(manager().backends)) or "none"
        raise BackendNotFound(f'There is no backend "{name}"; installed are: {names}.')
    return found.spec
