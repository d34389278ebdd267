"""`exo doctor`: what is missing or slow here. Knows this machine; of engines only what backends report."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from exocli import config, plugins
from exocli.backend import BackendSpec, Check, load_object
from exocli.cli import config_keys, context, render
from exocli.cli.params import json_option
from exocli.cli.render import size_text
from exocli.errors import ExoError

LOW_DISK = 2_000_000_000
LOW_MEMORY = 2_000_000_000
"""Bytes; below it the smallest models still run, but little else does."""

_MARKS = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Look for what is missing or slow on this machine. Exit 1 if something does not work."""
    checks = [(area, check) for area, run in _areas() for check in _guarded(area, run)]
    if as_json:
        rows = [{"area": area, **_plain(check)} for area, check in checks]
        render.print_json(rows)
    else:
        width = max(len(check.name) for _, check in checks)
        shown = ""
        for area, check in checks:
            if area != shown:
                click.echo(f"{'' if not shown else chr(10)}{area}")
                shown = area
            click.echo(f"  {_MARKS[check.state]}  {check.name.ljust(width)}  {check.text}")
            if check.hint:
                click.echo(f"  {'':{len(_MARKS['ok'])}}  {'':{width}}  → {check.hint}")
    if any(check.state == "problem" for _, check in checks):
        raise click.exceptions.Exit(1)


def _areas() -> Iterator[tuple[str, Callable[[], Iterator[Check]]]]:
    yield "exo", _program
    yield "this machine", _machine
    yield "folders", _folders
    yield "plugins", _plugins
    yield "exo chat", _default
    try:
        backends = plugins.manager().backends
    except ExoError:  # a broken config: `_plugins` has said so
        return
    for name, one in backends.items():
        yield f"backend {name}", partial(_backend, one.spec)


def _guarded(area: str, run: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """What was found until something raised, and then that: a doctor that faints helps nobody."""
    try:
        yield from run()
    except Exception as error:
        yield Check(name=area, text=f"cannot be examined: {context.reason_of(error)}", state="problem")


def _plain(check: Check) -> dict[str, Any]:
    return {"name": check.name, "state": check.state, "text": check.text, "hint": check.hint}


def _program() -> Iterator[Check]:
    for package in ("exocli", "click", "pluggy", "httpx", "rich", "prompt_toolkit"):
        try:
            yield Check(name=package, text=version(package))
        except PackageNotFoundError:
            yield Check(name=package, text="is not installed", state="problem", hint="pip install exocli")
    where = "" if sys.prefix != sys.base_prefix else ", not in a virtual environment"
    yield Check(name="python", text=f"{platform.python_version()} at {sys.executable}{where}")


def _machine() -> Iterator[Check]:
    yield Check(name="system", text=f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Check(name="cores", text=str(usable_cores()))
    total, available = memory()
    low = available is not None and available < LOW_MEMORY
    free = f", {size_text(available)} free" if available is not None else ""
    yield Check(
        name="memory",
        text=f"{size_text(total)}{free}",
        state="warning" if low else "ok",
        hint="close something, or use a smaller model" if low else "",
    )


def usable_cores() -> int:
    """Cores this process may use, which in a container can be fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> tuple[int, int | None]:
    """Total and available bytes, a container's limit included; available is None where unknown."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = None
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    limit, used = _lines("/sys/fs/cgroup/memory.max"), _lines("/sys/fs/cgroup/memory.current")
    if limit and limit[0].isdigit() and int(limit[0]) < total:
        total = int(limit[0])
        if used:
            available = min(available if available is not None else total, total - int(used[0]))
    return total, available


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _folders() -> Iterator[Check]:
    try:
        config.load()
        exists = "" if config.config_path().exists() else " (not there yet)"
        yield Check(name="config", text=f"{config.config_path()}{exists}")
        for fault in config_keys.faults():
            yield Check(
                name="config", text=fault, state="problem", hint='correct it, or "exo config unset" it'
            )
        for text in config_keys.strangers():
            yield Check(name="config", text=text, state="warning", hint="correct the name, or remove it")
    except ExoError as error:
        yield Check(name="config", text=error.message, state="problem", hint="correct or remove it")
    for name, path in (
        ("models", config.models_dir()),
        ("logs", config.data_dir("logs")),
        ("cache", config.cache_dir("")),
    ):
        yield _folder(name, path)


def _folder(name: str, path: Path) -> Check:
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        tempfile.TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        hint = "change its owner, or set EXO_HOME to a folder of yours"
        text = f"{path} cannot be written: {error.strerror}"
        return Check(name=name, text=text, state="problem", hint=hint)
    free = shutil.disk_usage(there).free
    low = free < LOW_DISK
    hint = 'make room: "exo models list" and "exo models rm"' if low else ""
    return Check(
        name=name, text=f"{path}, {size_text(free)} free", state="warning" if low else "ok", hint=hint
    )


def _plugins() -> Iterator[Check]:
    found = plugins.manager()
    for plugin, distribution, number in found.loaded:
        yield Check(name=plugin, text=f"{distribution} {number}")
    for problem in found.problems:
        hint = f"upgrade or remove {problem.distribution}"
        yield Check(name=problem.plugin, text=str(problem), state="warning", hint=hint)


def _default() -> Iterator[Check]:
    """What a chat would start with, were it started now."""
    try:
        choice = context.choose()
    except ExoError as error:
        yield Check(name="default", text=error.message, state="problem", hint='see "exo config show"')
        return
    yield Check(name="default", text=f"{choice.model} on {choice.backend} ({choice.why})")


def _backend(spec: BackendSpec) -> Iterator[Check]:
    state = context.availability(spec)
    if state.ok:
        yield Check(name="available", text=spec.summary)
    else:
        yield Check(name="available", text=f"no: {state.reason}", state="warning", hint=state.hint)
    if spec.doctor is not None:
        yield from load_object(spec.doctor)()
