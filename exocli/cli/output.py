"""Standard output whose reader may stall (a pager, a slow pipe) without holding up the program.

A blocked write would keep the loop from hearing Ctrl-C; here the loop runs on until there is room.
"""

from __future__ import annotations

import asyncio
import select
import sys

PIECE = 400
"""Characters written at once: however encoded, fewer bytes than a pipe that has any room takes (PIPE_BUF)."""


class Output:
    """Belongs to one asyncio loop. Errors of writing come out as OSError."""

    def __init__(self) -> None:
        self.stalled = False
        """Somebody waits in `write` for the reader."""

    async def write(self, text: str) -> None:
        for start in range(0, len(text), PIECE):
            await self._room()
            sys.stdout.write(text[start : start + PIECE])
            sys.stdout.flush()

    async def _room(self) -> None:
        try:
            fd = sys.stdout.fileno()
            free = select.select([], [fd], [], 0)[1]
        except (OSError, ValueError):  # not a file, or a closed one: the write tells
            return
        if free:
            return
        loop = asyncio.get_running_loop()
        room = asyncio.Event()
        loop.add_writer(fd, room.set)
        self.stalled = True
        try:
            await room.wait()
        finally:
            self.stalled = False
            loop.remove_writer(fd)
