"""What a backend's variants (BackendSpec.variants) gain or cost: the same requests there and here, in turns.

Both engines are there side by side, so that a machine that slows down does so for both.
"""

from __future__ import annotations

import statistics
from typing import Any

from exocli import plugins
from exocli.backend import Variant, load_object
from exocli.benchmark_requests import Note, Plan, Sample, cancels, one, request
from exocli.errors import ExoError
from exocli.options import build
from exocli.runtime.session import Session
from exocli.types import Message, Request

ROUNDS = 3
"""At most: a reply here is long, and both sides give the same one each time."""
CANCELS = 20
"""At most, for each variant."""
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


async def compare(session: Session, plan: Plan, note: Note) -> dict[str, Any]:
    """{"variants": {name: what was measured, or {error}}}; {} for a backend without variants. `session` is
    loaded. Raises what a request of its own ended with, if it was an error."""
    spec = session.spec
    if spec.variants is None:
        return {}
    cls = load_object(spec.open_options) if spec.open_options else None
    options = build(cls, [session.options], f"the backend {spec.name}") if cls else session.options
    found: dict[str, Any] = {}
    for variant in load_object(spec.variants)(options, session.facts):
        other_spec = plugins.backend(variant.backend) if variant.backend else spec
        async with session.like(other_spec, **variant.options) as other:
            try:
                await other.load()
            except ExoError as error:
                found[variant.name] = {"error": error.message}
            else:
                found[variant.name] = await _measure(session, other, variant, plan, note)
    return {"variants": found} if found else {}


async def _measure(
    plain: Session, other: Session, variant: Variant, plan: Plan, note: Note
) -> dict[str, Any]:
    def told(text: str) -> None:
        note(f"{variant.name}: {text}")

    match variant.measure:
        case "cancel":
            return await cancels(other, plan, min(plan.cancels, CANCELS), told)
        case "prefill":
            return await _prefill(plain, other, plan, told)
        case "decode":
            return await _decode(plain, other, min(plan.rounds, ROUNDS), told)


async def _prefill(plain: Session, other: Session, plan: Plan, note: Note) -> dict[str, Any]:
    """`prefill_ratio`: how much faster `plain` reads a prompt than `other` does."""
    pairs: list[tuple[float, float]] = []
    for number in range(-1, plan.rounds):  # the first pair settles the size of the chunks
        note(f"round {number + 1} of {plan.rounds}")
        asked = [request(f"read {number}", plan, 2 * plan.prompt_words, 1) for _ in range(2)]
        first, second = await one(plain, asked[0]), await one(other, asked[1])
        if number >= 0:
            pairs.append((first.prefill_tps, second.prefill_tps))
    return {
        "prefill_ratio": round(statistics.median(a / b for a, b in pairs), 2),
        "prefill_tps": round(statistics.median(b for _, b in pairs), 1),
        "plain_tps": round(statistics.median(a for a, _ in pairs), 1),
        "rounds": plan.rounds,
    }


async def _decode(plain: Session, other: Session, rounds: int, note: Note) -> dict[str, Any]:
    """`decode_ratio`: how much faster `other` writes than `plain` does, and whether it writes the same."""
    pairs: list[tuple[Sample, Sample]] = []
    for number in range(rounds):
        note(f"round {number + 1} of {rounds}")
        text = f"{PROMPTS[number % len(PROMPTS)]}\n\n{REPORT}"
        asked = Request(messages=(Message(role="user", content=text),), max_tokens=REPLY_TOKENS)
        pairs.append((await one(plain, asked), await one(other, asked)))
    rates = [(a.decode_tps, b.decode_tps) for a, b in pairs]
    return {
        "decode_ratio": round(statistics.median([b / a for a, b in rates if a] or [0.0]), 2),
        "decode_tps": round(statistics.median(b for _, b in rates), 1),
        "plain_tps": round(statistics.median(a for a, _ in rates), 1),
        "text_equal": all(a.text == b.text for a, b in pairs),
        "rounds": rounds,
    }
