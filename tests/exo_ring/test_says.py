"""Two ranks of a model that says what it is told to: all stop at one token, rank 0 tells what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exocli import Event, Message, Reasoning, Text, ToolCall
from mlx_lm import tokenizer_utils

from tests.exo_mlx import scripted
from tests.exo_mlx.conftest import npm_tokenizer
from tests.exo_mlx.saying import TIME
from tests.exo_ring.conftest import open_session
from tests.support.runtime import end, reply

pytestmark = [pytest.mark.asyncio, pytest.mark.soak]
HI = {"messages": (Message(role="user", content="Hi"),), "max_tokens": 40}
CLOCK = {
    "type": "function",
    "function": {
        "name": "time",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}


def said(events: list[Event]) -> tuple[str, str, list[str]]:
    return (
        "".join(event.text for event in events if isinstance(event, Reasoning)),
        "".join(event.text for event in events if isinstance(event, Text)),
        [event.name for event in events if isinstance(event, ToolCall)],
    )


async def test_thoughts_calls_stops_and_cancels_on_two_ranks(tmp_path: Path) -> None:
    files = npm_tokenizer("qwen3")
    folder = scripted.write(tmp_path / "qwen3", files, tokenizer_utils.load(files), layers=2)
    async with open_session(folder, chunk=32) as ring:

        async def ask(**fields: Any) -> list[Event]:
            return await reply(ring, "", **{**HI, **fields})

        assert said(await ask()) == ("Hmm sure.", "Hello there!", [])
        stopped = await ask(stop=("sure", " there"))
        assert said(stopped) == ("Hmm sure.", "Hello", [])
        assert (end(stopped).reason, end(stopped).stop) == ("stop", " there")
        called = await ask(tools=(TIME,), reasoning=False)
        assert (said(called), end(called).reason) == (("", "", ["time"]), "tool_calls")
        required = await ask(tools=(CLOCK,), tool_choice="required")
        assert (said(required), end(required).reason) == (("Hmm sure.", "", ["time"]), "tool_calls")
        cancelled = await ask(at=lambda event: isinstance(event, Reasoning))
        assert end(cancelled).reason == "cancelled"
        assert said(cancelled)[1:] == ("", [])
        assert said(await ask()) == ("Hmm sure.", "Hello there!", [])
        assert ring.restarts == 0
