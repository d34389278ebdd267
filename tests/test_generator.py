"""A blocking generator as a stream: in a thread, not far ahead of its reader, and never left hanging."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from exocli import CancelToken, Event, Finished, Request, Text, from_generator
from exocli.generator import GENERATOR_AHEAD


async def test_it_is_only_a_little_ahead_of_its_reader_and_ends_when_that_one_leaves() -> None:
    made = 0
    ended = threading.Event()

    def endless(request: Request, cancel: CancelToken) -> Iterator[Event]:
        nonlocal made
        while not cancel.cancelled:
            made += 1
            yield Text(id=request.id, text="x")
        for _ in range(2 * GENERATOR_AHEAD):  # what it says after the cancel blocks nobody either
            yield Text(id=request.id, text="late")
        ended.set()

    stream = from_generator(endless).stream(Request(prompt="a"), CancelToken())
    for read in range(1, 300):
        await anext(stream)
        assert made <= read + GENERATOR_AHEAD + 1
    await stream.aclose()  # type: ignore[attr-defined]
    assert ended.wait(5)


async def test_what_it_raises_is_raised_to_the_reader() -> None:
    def failing(request: Request, cancel: CancelToken) -> Iterator[Event]:
        yield Text(id=request.id, text="x")
        raise SystemExit(3)

    stream = from_generator(failing).stream(Request(prompt="a"), CancelToken())
    assert isinstance(await anext(stream), Text)
    with pytest.raises(SystemExit):
        await anext(stream)


async def test_it_ends_when_the_generator_ends() -> None:
    def short(request: Request, cancel: CancelToken) -> Iterator[Event]:
        yield Finished(id=request.id, reason="stop")

    token = CancelToken()
    events = [e async for e in from_generator(short).stream(Request(prompt="a"), token)]
    assert [e.type for e in events] == ["finished"]
