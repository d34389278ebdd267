"""The requests that rank 0 is to prepare, and who waits for which answer. Decides nothing (group.py does)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from exocli.errors import ExoError, from_dict
from exocli.runtime import wire
from exocli.types import Prepared, Request, prepared_from_json, to_json

PREPARE_LIMIT = 60.0
"""Seconds for a request to be prepared, and for those before it."""


class Prepares:
    """`send` writes a line to rank 0. Its length is how many wait."""

    def __init__(self, send: Callable[[wire.Line], None]) -> None:
        self._send = send
        self._waiting: dict[int, asyncio.Future[Prepared]] = {}
        # Not by the request's id: that may come again while rank 0 is still at one that nobody waits for.
        self._tickets = itertools.count(1)

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, request: Request) -> Prepared:
        """Raises what rank 0 answers, what `fail` is told, and TimeoutError after PREPARE_LIMIT."""
        ticket = next(self._tickets)
        future: asyncio.Future[Prepared] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._send({"do": "prepare", "ticket": ticket, "request": to_json(request)})
        try:
            async with asyncio.timeout(PREPARE_LIMIT):
                return await future
        finally:
            del self._waiting[ticket]

    def on_line(self, line: dict[str, Any]) -> None:
        """A "prepared" line: for whoever still waits for it."""
        future = self._waiting.get(line["ticket"])
        if future is None or future.done():
            return
        if "error" in line:
            future.set_exception(from_dict(line["error"]))
        else:
            future.set_result(prepared_from_json(line["prepared"]))

    def fail(self, error: ExoError) -> None:
        """Nobody will be answered any more."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
