"""`exo plugins new`: the files of a small working plugin, in a distribution of its own."""

from __future__ import annotations

import re
from pathlib import Path

from exocli.backend import API
from exocli.errors import UsageError

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def backend_name(name: str) -> str:
    return name.removeprefix("exo-")


def write(name: str, parent: Path) -> Path:
    """Write the distribution `exo-NAME` below `parent`; its folder. Raises UsageError, and writes nothing,
    for a name that is no package name, that a backend has already, or whose folder is there."""
    from exocli import plugins

    backend = backend_name(name)
    if not _NAME.fullmatch(backend):
        raise UsageError(f'"{name}" is not a name for a plugin: use a-z, 0-9 and "-", a letter first.')
    if backend in plugins.manager().backends:
        raise UsageError(f'A backend "{backend}" is installed already; choose another name.')
    folder = parent / f"exo-{backend}"
    if folder.exists():
        raise UsageError(f"{folder} is there already; choose another name or another --dir.")
    words = {
        "@DIST@": f"exo-{backend}",
        "@MODULE@": f"exo_{backend}".replace("-", "_"),
        "@NAME@": backend,
        "@API@": str(API),
    }
    for path, text in _FILES.items():
        for mark, word in words.items():
            path, text = path.replace(mark, word), text.replace(mark, word)
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "@DIST@"
version = "0.1.0"
description = "The backend @NAME@ for exo"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["exocli"]

[project.entry-points.exo]
@NAME@ = "@MODULE@.plugin"

[tool.hatch.build.targets.wheel]
packages = ["@MODULE@"]
"""

_README = """\
# @DIST@

    pip install -e . pytest
    exo run -b @NAME@ "hello"
    exo plugins check @NAME@
    exo plugins test @NAME@
"""

_PLUGIN = '''\
"""What this plugin offers. exo imports this module to list it: import nothing heavy here."""

from collections.abc import Iterable

from exocli import BackendSpec, Capabilities, hookimpl


@hookimpl
def exo_backends() -> Iterable[BackendSpec]:
    yield BackendSpec(
        name="@NAME@",
        summary="Repeats what it is told",
        api=@API@,
        protocol="stream",
        place="inline",  # "worker" gives the engine a process of its own
        open="@MODULE@.engine:open_engine",
        open_options="@MODULE@.engine:Options",
        capabilities=Capabilities(max_concurrency=4),
    )
'''

_ENGINE = '''\
"""The engine. Replace `generate`; look at the cancel token as often as you can."""

from collections.abc import Iterator
from dataclasses import dataclass

from exocli import (
    CancelToken,
    Event,
    Finished,
    OpenContext,
    Progress,
    Receipt,
    Request,
    StreamEngine,
    Text,
    Usage,
    from_generator,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `-o KEY=VALUE` and [backends.@NAME@] in the config accept."""

    shout: bool = False


def open_engine(ctx: OpenContext) -> StreamEngine:
    def generate(request: Request, cancel: CancelToken) -> Iterator[Event]:
        words = _prompt(request).split()
        yield Progress(id=request.id, processed=len(words), total=len(words))
        written = 0
        for word in words:
            if cancel.cancelled:
                receipt = Receipt(phase="decode", processed=len(words), total=len(words))
                yield _end(request, "cancelled", len(words), written, receipt)
                return
            if written == request.max_tokens:
                yield _end(request, "length", len(words), written)
                return
            text = word.upper() if ctx.options.shout else word
            yield Text(id=request.id, text=text if not written else " " + text)
            written += 1
        yield _end(request, "stop", len(words), written)

    return from_generator(generate)


def _prompt(request: Request) -> str:
    if request.prompt is not None:
        return request.prompt
    content = request.messages[-1].content or ""
    return content if isinstance(content, str) else " ".join(part.text for part in content)


def _end(
    request: Request, reason: str, prompt: int, written: int, receipt: Receipt | None = None
) -> Finished:
    usage = Usage(prompt_tokens=prompt, completion_tokens=written)
    return Finished(id=request.id, reason=reason, usage=usage, cancel=receipt)
'''

_TEST = '''\
"""The parts by themselves; `exo plugins test @NAME@` runs exo's own kit on the whole."""

from exocli import BackendSpec, CancelToken, Finished, Message, Request, Text

from @MODULE@ import plugin
from @MODULE@.engine import Options, open_engine


class Context:
    options = Options(shout=True)


async def events(request: Request, cancel: CancelToken) -> list[object]:
    return [event async for event in open_engine(Context()).stream(request, cancel)]


def run(text: str, cancelled: bool = False) -> list[object]:
    import asyncio

    cancel = CancelToken()
    if cancelled:
        cancel.cancel()
    request = Request(messages=(Message(role="user", content=text),))
    return asyncio.run(events(request, cancel))


def test_offers_a_backend() -> None:
    (spec,) = plugin.exo_backends()
    assert isinstance(spec, BackendSpec) and spec.name == "@NAME@"


def test_answers() -> None:
    found = run("hello there")
    assert "".join(e.text for e in found if isinstance(e, Text)) == "HELLO THERE"
    assert isinstance(found[-1], Finished) and found[-1].reason == "stop"


def test_stops_when_told() -> None:
    found = run("hello there", cancelled=True)
    assert isinstance(found[-1], Finished) and found[-1].reason == "cancelled"
'''

_FILES = {
    "pyproject.toml": _PYPROJECT,
    "README.md": _README,
    "@MODULE@/__init__.py": '"""The backend @NAME@ for exo."""\n',
    "@MODULE@/plugin.py": _PLUGIN,
    "@MODULE@/engine.py": _ENGINE,
    "tests/test_@MODULE@.py": _TEST,
}
