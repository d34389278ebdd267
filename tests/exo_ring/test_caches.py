"""A sliding-window model on two ranks: one has the bounded caches, the other those that grow, quantized."""

from __future__ import annotations

from pathlib import Path

from exocli import CancelToken, Event, Finished, Message, Progress, Request, Sampling, Text
from exocli.runtime.session import Session

from tests.exo_mlx import kinds
from tests.exo_mlx.kinds import Driver, prompt
from tests.exo_ring.conftest import open_session
from tests.support.runtime import end, text


async def ask(session: Session, stop_at: int | None = None, **fields: object) -> list[Event]:
    token = CancelToken()
    events = []
    request = Request(max_tokens=6, sampling=Sampling(temperature=0.0), **fields)  # type: ignore[arg-type]
    async for event in session.stream(request, token):
        events.append(event)
        if stop_at is not None and isinstance(event, Progress) and event.processed >= stop_at:
            token.cancel()
    return events


def alone(driver: Driver, **fields: object) -> str:
    one = driver.start(str(fields.pop("prompt", "")), 6, **fields)
    driver.run(one)
    return "".join(event.text for event in driver.events[one] if isinstance(event, Text))


async def test_cancelled_resumed_and_followed_up_as_on_one_rank(tmp_path: Path) -> None:
    folder = kinds.write(tmp_path / "m", "sliding")
    options = {"chunk": 8, "kv_bits": 8, "kv_group_size": 32}
    driver = Driver(folder, **{**options, "cache_entries": 0})
    long = prompt(200)
    async with open_session(folder, **options) as ring:
        await ring.load()
        assert ring.facts["kv_tokens"] == ring.capabilities.kv_tokens
        stopped = end(await ask(ring, 24, task="complete", prompt=long))
        assert stopped.cancel is not None and stopped.cancel.phase == "prefill"
        again = await ask(ring, task="complete", prompt=long)
        assert end(again).usage.cached_tokens == stopped.cancel.kept_tokens > 0
        assert text(again) == alone(driver, prompt=long)
        turns = [Message(role="user", content=prompt(40, seed=4))]
        first = await ask(ring, messages=tuple(turns))
        turns += [Message(role="assistant", content="well"), Message(role="user", content="and?")]
        second = await ask(ring, messages=tuple(turns))
        last = second[-1]
        assert isinstance(last, Finished) and last.usage.cached_tokens > 40
        assert text(first) == alone(driver, messages=tuple(turns[:1]))
        assert text(second) == alone(driver, messages=tuple(turns))
