"""Opens the engine, and answers what a server has: both ask the server, with an event loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from exocli import CancelToken, OpenContext, StreamEngine

from exo_remote import models, urls
from exo_remote.discover import Found
from exo_remote.engine import RemoteEngine, choose_model, look
from exo_remote.keys import Key
from exo_remote.options import Options


def open_engine(context: OpenContext) -> StreamEngine:
    """Raises UsageError, Unavailable, UpstreamError, ModelNotFound, Cancelled."""
    options: Options = context.options
    base = urls.parse(options.url)
    key = Key(base, options.api_key)
    found = _look(base, options, key, context.cache_dir, context.cancel)
    model = choose_model(found, context.model, base)
    return RemoteEngine(context, base, key, found, model)


def ask(options: Options, cache_dir: Path) -> Sequence[str]:
    """The names of the server's models, the default one first. Raises as `open_engine`."""
    base = urls.parse(options.url)
    return _look(base, options, Key(base, options.api_key), cache_dir, CancelToken()).names


def _look(base: urls.Base, options: Options, key: Key, cache_dir: Path, cancel: CancelToken) -> Found:
    found = asyncio.run(look(base, options, key, cancel))
    models.remember(cache_dir, base.home, found.names, found.dialect.describe())
    return found
