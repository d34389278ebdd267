"""What a reply of these tokens becomes: the real output of a request, fed by hand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from exocli import Event, Reasoning, Text, ToolCall

from exo_mlx.output import Output

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "time", "description": "What time it is."}}


@dataclass
class Said:
    text: str = ""
    thought: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    reason: str = ""
    stop: str | None = None
    tokens: int = 0
    reasoning_tokens: int = 0
    events: list[Event] = field(default_factory=list)

    @property
    def order(self) -> list[str]:
        """The kinds of events, each run of one kind once."""
        kinds = [event.type for event in self.events]
        return [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]


def pieces(tokenizer: Any, text: str, cuts: Sequence[int]) -> list[int]:
    """Token ids of `text`, cut at these places whatever the tokenizer would have made one token."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts = [text[a:b] for a, b in itertools.pairwise(places)]
    return [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False)]


def say(
    tokenizer: Any,
    reply: str | Sequence[int],
    reason: str = "stop",
    *,
    tools: Sequence[Any] = (),
    stop: Sequence[str] = (),
    state: str | None = "normal",
    continuing: bool = False,
    logprobs: bool = False,
) -> Said:
    """Feed the reply until it ends, for `reason` or by a stop string."""
    settings = {
        "tools": list(tools),
        "stop": list(stop),
        "state": state,
        "continuing": continuing,
        "logprobs": 0 if logprobs else None,
    }
    output = Output("r", tokenizer, settings)
    said = Said()
    tokens = tokenizer.encode(reply, add_special_tokens=False) if isinstance(reply, str) else reply
    for token in tokens:
        said.events += output.feed(token, {"token": tokenizer.decode([token])} if logprobs else None)
        if output.stop is not None:
            break
    events, said.reason = output.finish(reason)
    said.events += events
    said.stop, said.tokens, said.reasoning_tokens = output.stop, output.tokens, output.reasoning_tokens
    for event in said.events:
        match event:
            case Text():
                said.text += event.text
            case Reasoning():
                said.thought += event.text
            case ToolCall():
                assert event.index == len(said.calls)
                said.calls.append((event.name, json.loads(event.arguments)))
    return said
