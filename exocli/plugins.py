"""Finds plugins, loads each under its own guard, and answers who offers what.

Built-ins come through the same entry points as third parties. A plugin that fails in any way is
reported by name, distribution, version and reason; everything else works.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
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

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

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
    name, version = (dist.name, dist.version) if dist is not None else (None, None)
    return name or "unknown", version or "?"  # broken metadata has neither


def _same(name: str) -> str:
    """Distributions are named alike however they spell it (PyPA's name normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _wanted(point: EntryPoint) -> bool:
    distribution, _ = _origin(point)
    if distribution == HOME:
        return True
    if config.switch("EXO_NO_PLUGINS"):
        return False
    names = {_same(point.name), _same(distribution)}
    allowed = os.environ.get("EXO_PLUGINS")
    if allowed is not None and not names & {_same(name.strip()) for name in allowed.split(",")}:
        return False
    disabled = config.get("plugins.disabled", [])
    return not names & {_same(str(name)) for name in (disabled if isinstance(disabled, list) else [disabled])}


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
        # What a plugin prints must not get into the output of the command that lists it.
        with contextlib.redirect_stdout(sys.stderr):
            return self._load_all(points)

    def _load_all(self, points: Iterable[EntryPoint]) -> PluginManager:
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
            self.problem(point.name, origin, f"cannot be imported ({_reason(error)})")
            return
        key = f"{origin[0]}:{point.name}"
        try:
            self.pm.register(module, name=key)
        except BaseException as error:
            # register() is not atomic: hooks before the faulty one are in already.
            if self.pm.has_plugin(key):
                self.pm.unregister(name=key)
            text = f"cannot be registered ({_reason(error)})"
            if isinstance(error, pluggy.PluginValidationError):
                text = f"wrong hook signature ({str(error).splitlines()[-1]})"
            self.problem(point.name, origin, text)
            return
        callers = self.pm.get_hookcallers(module) or []
        for caller in callers:
            if not caller.has_spec():
                text = f'implements "{caller.name}", which is not a hook of this version'
                self.problem(point.name, origin, text)
        before = len(self.out.problems)
        for hook, kind, table in (
            ("exo_backends", BackendSpec, self.out.backends),
            ("exo_commands", CommandSpec, self.out.commands),
            ("exo_server_routes", RouteSpec, self.out.routes),
        ):
            self._collect(module, key, point.name, origin, hook, kind, table)
        if any(caller.has_spec() for caller in callers) and len(self.out.problems) == before:
            self.out.loaded.append((point.name, *origin))
        elif not callers:
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
            self.problem(plugin, origin, f"{hook} failed ({_reason(error)})")
            return
        for spec in specs:
            if not isinstance(spec, kind):
                self.problem(
                    plugin, origin, f"{hook} answered a {type(spec).__name__}, not a {kind.__name__}"
                )
            elif not isinstance(spec.name, str) or not _NAME.fullmatch(spec.name):
                what = kind.__name__.removesuffix("Spec").lower()
                text = f'the name {spec.name!r} of a {what} must be of letters, digits, ".", "_" and "-"'
                self.problem(plugin, origin, text)
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
                self.problem(plugin, origin, f'offers the {what} "{name}" twice')
                return
            text = f'the {what} "{name}" belongs to {holder.distribution} already; this one is "{full}"'
            self.problem(plugin, origin, text)
            name = full
        table[name] = Registered(name, spec, *origin, plugin)


@cache
def manager() -> PluginManager:
    """All plugins, loaded once a process. Raises PluginProblem under EXO_STRICT_PLUGINS=1."""
    found = _Loader().load(entry_points(group=GROUP))
    if found.problems and config.switch("EXO_STRICT_PLUGINS"):
        raise PluginProblem(str(found.problems[0]))
    return found


def backend(name: str) -> BackendSpec:
    """Raises BackendNotFound that lists the names there are."""
    found = manager().backends.get(name)
    if found is None:
        names = ", ".join(sorted(manager().backends)) or "none"
        raise BackendNotFound(f'There is no backend "{name}"; installed are: {names}.')
    return found.spec
