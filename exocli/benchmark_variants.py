"""What a backend's variants (BackendSpec.variants) gain: the same requests with their options and without.

Both engines run side by side and take turns, so that a machine that slows down does so for both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exocli.errors import ExoError, from_dict
from exocli.runtime.session import Session
from exocli.types import Finished, Message, Request, Text

ROUNDS = 3
"""At most: a reply here is long, and both sides give the same one each time."""
REPLY_TOKENS = 96

REPORT = (
    "The harbour of Ostwick was built in 1842 by the engineer Thomas Hale. It has two stone piers, each "
    "four hundred metres long, and a lighthouse on the northern one. The lighthouse was automated in "
    "1978, and its last keeper, Anna Berg, moved to the village school as a teacher. In winter, when "
    "the wind comes from the east, the ferries to the islands do not sail, and the mail is flown in by "
    "a small aeroplane from Karlsund. The fish market opens every morning at five o'clock except on "
    "Sundays. In 2003 a storm broke the southern pier, and the town spent three years and eleven "
    "million crowns on its repair. Since then a barrier of concrete blocks protects the entrance. The "
    "museum in the old customs house shows models of the ships that were built here between 1850 and "
    "1920, among them the schooner Marianne, which sailed twice around the world."
)
PROMPTS = (
    "Summarise the following text in a few sentences.",
    "Quote the most important sentences of this text word by word.",
    "List every fact of this text as a bullet point.",
)


@dataclass(frozen=True, slots=True)
class _Reply:
    text: str
    tokens: int
    seconds: float
    """From the first text to the last one."""

    @property
    def tps(self) -> float:
        return (self.tokens - 1) / self.seconds if self.seconds else 0.0


async def compare(session: Session, rounds: int, note: Callable[[str], None]) -> dict[str, Any]:
    """{"variants": {name: {decode_ratio, decode_tps, plain_tps, text_equal, rounds} or {error}}}; {} for a
    backend without variants. `session` is loaded. Raises what a request ended with, if it was an error."""
    found: dict[str, Any] = {}
    for name, options in session.spec.variants.items():
        other = session.like(session.spec, **options)
        try:
            await other.load()
        except ExoError as error:
            found[name] = {"error": error.message}
            continue
        else:
            found[name] = await _compare(session, other, name, min(rounds, ROUNDS), note)
        finally:
            await other.close()
    return {"variants": found} if found else {}


async def _compare(
    plain: Session, other: Session, name: str, rounds: int, note: Callable[[str], None]
) -> dict[str, Any]:
    pairs: list[tuple[_Reply, _Reply]] = []
    for number in range(rounds):
        note(f"{name}: round {number + 1} of {rounds}")
        text = f"{PROMPTS[number % len(PROMPTS)]}\n\n{REPORT}"
        request = Request(messages=(Message(role="user", content=text),), max_tokens=REPLY_TOKENS)
        pairs.append((await _ask(plain, request), await _ask(other, request)))
    return {
        "decode_ratio": round(statistics.median(b.tps / a.tps for a, b in pairs if a.tps), 2),
        "decode_tps": round(statistics.median(b.tps for _, b in pairs), 1),
        "plain_tps": round(statistics.median(a.tps for a, _ in pairs), 1),
        "text_equal": all(a.text == b.text for a, b in pairs),
        "rounds": rounds,
    }


async def _ask(session: Session, request: Request) -> _Reply:
    parts: list[str] = []
    times: list[float] = []
    async for event in session.stream(request):
        if isinstance(event, Text):
            parts.append(event.text)
            times.append(time.perf_counter())
        elif isinstance(event, Finished):
            if event.reason == "error":
                raise from_dict(event.error or {})
            seconds = times[-1] - times[0] if times else 0.0
            return _Reply("".join(parts), event.usage.completion_tokens, seconds)
    raise AssertionError("a stream ends with Finished")
