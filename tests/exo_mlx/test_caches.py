"""Every kind of KV cache in the batched path: cancelled, resumed, reused, and always the model's own text."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from exocli import Message, Prepared, Request, UsageError
from mlx_lm.models.cache import QuantizedKVCache

from tests.exo_mlx import kinds
from tests.exo_mlx.kinds import Driver, prompt

KINDS = tuple(kinds.CONFIGS)
TRIMMED = ("plain", "quantized")
"""Kinds that are cut back wherever a prompt leaves a kept one."""
LONG = prompt(3 * kinds.WINDOW - 5)


@pytest.fixture(scope="module", params=[*KINDS, "quantized", "quantized-sliding"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    kind, options = request.param, {}
    if kind.startswith("quantized"):
        kind = kind.partition("-")[2] or "plain"
        options = {"kv_bits": 8 if kind == "plain" else 4, "kv_group_size": 32}
    path = kinds.write(tmp_path_factory.mktemp(kind) / "model", kind)
    made = Driver(path, **options)
    made.name = request.param
    yield made
    made.engine.close()


@pytest.fixture(scope="module")
def alone(driver: Driver) -> Iterator[Driver]:
    """The same model in an engine that keeps nothing and is never cancelled."""
    made = Driver(driver.path, **{**driver.options, "cache_entries": 0})
    yield made
    made.engine.close()


def test_a_batch_of_unlike_lengths_answers_as_the_model_alone(driver: Driver, alone: Driver) -> None:
    prompts = [prompt(n, seed=n) for n in (5, 41, 17, 60)]
    if driver.engine.capabilities.max_concurrency == 1:
        replies = [driver.ask(one, 5)[0] for one in prompts]
    else:
        ids = []
        for one in prompts:  # one after the other: some decode while others are read
            ids.append(driver.start(one, 5))
            driver.step(2)
        replies = driver.run(*ids)
    if driver.options.get("kv_bits"):
        assert replies == [alone.ask(one, 5)[0] for one in prompts]
    else:
        assert replies == [driver.plainly(driver.encode(one), 5) for one in prompts]


def test_cancelled_in_prefill_and_sent_again(driver: Driver, alone: Driver) -> None:
    one, other = driver.start(LONG), None
    driver.step(3)
    if driver.engine.capabilities.max_concurrency > 1:
        other = driver.start(prompt(30, seed=1))
        driver.step(1)
    finished = driver.cancel(one)
    receipt = finished.cancel
    assert receipt is not None and receipt.phase == "prefill"
    assert 0 < receipt.processed < receipt.total
    assert receipt.kept_tokens == receipt.processed
    if other is not None:
        assert driver.run(other)[0] == alone.ask(prompt(30, seed=1))[0]
    reply, cached = driver.ask(LONG)
    assert cached == receipt.kept_tokens
    assert reply == alone.ask(LONG)[0]


def test_cancelled_in_decode_and_followed_up(driver: Driver, alone: Driver) -> None:
    """The next turn is answered as by a fresh process on the same transcript."""
    asked = driver.encode(prompt(50, seed=2))
    one = driver.start_tokens(asked, max_tokens=30)
    while len(driver.tokens(one)) < 5:
        driver.step()
    finished = driver.cancel(one)
    assert finished.cancel is not None and finished.cancel.phase == "decode"
    said = driver.tokens(one)
    kept = finished.cancel.kept_tokens
    held = len(asked) + len(said) - driver.lacking
    assert kept is not None and kept >= held
    follow = [*asked, *said, *driver.encode(prompt(9, seed=3))]
    again, truth = driver.start_tokens(follow), alone.start_tokens(follow)
    assert driver.run(again) == alone.run(truth)
    found = driver.finished(again)
    assert found is not None
    if driver.name in TRIMMED:
        assert found.usage.cached_tokens == held
    else:  # where the generator is a token ahead of what was said, the reply's cache is of no use
        assert found.usage.cached_tokens == (held if driver.lacking else len(asked) - 1)


def test_the_next_turn_does_not_begin_at_zero(driver: Driver, alone: Driver) -> None:
    """The template of these models opens a reply with what the next turn's prompt does not have."""
    turns = [Message(role="user", content=prompt(40, seed=4))]
    first = driver.start("", 6, messages=tuple(turns))
    driver.run(first)
    turns += [Message(role="assistant", content=" well "), Message(role="user", content="and?")]
    reply, cached = driver.ask("", 6, messages=tuple(turns))
    assert reply == alone.ask("", 6, messages=tuple(turns))[0]
    common = driver.prepared[first].prompt_tokens - len("(thinks)\n")
    opening = len("<assistant\n")  # the start of a message is one token
    assert cached == (common if driver.name in TRIMMED else common - opening)


def test_one_that_is_sent_again_is_read_again_by_its_last_token_alone(driver: Driver, alone: Driver) -> None:
    text = prompt(60, seed=5)
    driver.ask(text)
    reply, cached = driver.ask(text)
    assert cached == 59
    assert reply == alone.ask(text)[0]


def test_another_end_reuses_what_is_right(driver: Driver, alone: Driver) -> None:
    """A prompt that leaves a kept one in the middle: cut back where that can be, else from the start."""
    head = prompt(45, seed=6)
    driver.ask(head + prompt(20, seed=7))
    reply, cached = driver.ask(head + prompt(20, seed=8))
    assert reply == alone.ask(head + prompt(20, seed=8))[0]
    assert cached == (45 if driver.name in TRIMMED else 0)


def test_an_id_that_comes_back_names_another_cache(driver: Driver, alone: Driver) -> None:
    """Whoever sends a request may choose its id; what is kept for an older one of that id stays its own."""
    texts = [prompt(50, seed=seed) for seed in (11, 12)]
    for text in texts:
        driver.ask(text, id="the-same")
    for text in texts:
        reply, cached = driver.ask(text)
        assert cached == 49
        assert reply == alone.ask(text)[0]


def test_kept_tokens_is_zero_where_nothing_is_kept(alone: Driver) -> None:
    one = alone.start(LONG)
    alone.step(3)
    receipt = alone.cancel(one).cancel
    assert receipt is not None and receipt.kept_tokens == 0 and receipt.processed > 0
    assert not alone.engine._kept._caches


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_whatever_comes_and_goes(driver: Driver, alone: Driver, seed: int) -> None:
    """Random arrivals and cancels, prompts that begin alike, few kept caches: every reply is the model's."""
    rng = random.Random(seed)
    heads = [prompt(rng.randint(2, 70), seed=rng.randint(0, 5)) for _ in range(8)]
    pool = [*heads, *(a + b for a in heads[:3] for b in heads[3:5])]
    truths: dict[tuple[str, int], list[int]] = {}
    live: dict[str, tuple[str, int]] = {}
    for _ in range(150):
        what = rng.random()
        if what < 0.35 and len(live) < driver.engine.capabilities.max_concurrency:
            asked = rng.choice(pool), rng.randint(1, 8)
            live[driver.start(*asked)] = asked
        elif what < 0.5 and live:
            driver.cancels[rng.choice(list(live))].cancel()
        driver.step(rng.randint(1, 4))
        for one in [one for one in live if driver.finished(one)]:
            asked = live.pop(one)
            if asked not in truths:
                truths[asked] = alone.ask(*asked)[0]
            said, finished = driver.tokens(one), driver.finished(one)
            assert finished is not None
            whole = finished.reason != "cancelled"
            assert said == (truths[asked] if whole else truths[asked][: len(said)])
    for one in live:
        driver.cancel(one)


# ------------------------------------------------------------------------------------- by one kind


def test_a_window_that_is_not_full_is_cut_back(tmp_path: Path) -> None:
    driver = Driver(kinds.write(tmp_path / "m", "sliding"))
    driver.ask(prompt(15), 2)
    reply, cached = driver.ask(prompt(10) + prompt(6, seed=3), 4)
    assert cached == 10
    assert reply == driver.plainly(driver.encode(prompt(10) + prompt(6, seed=3)), 4)


def test_a_cache_that_is_too_small_for_its_clients_stalls_nobody(tmp_path: Path) -> None:
    """B21: room for two, four clients; what a prepare found may be gone when its turn comes."""
    driver = Driver(kinds.write(tmp_path / "m", "plain"), cache_entries=2)
    head = prompt(20, seed=9)
    asked = [head + prompt(3 + n, seed=n) for n in range(6)]
    truths = [driver.plainly(driver.encode(one), 3) for one in asked]
    order = [number * 5 % 6 for number in range(40)]
    fields: dict[str, Any] = {"task": "complete", "max_tokens": 3, "logprobs": 0}
    ahead: deque[Prepared] = deque()
    live: dict[str, int] = {}
    answered, served = 0, 0
    for number, which in enumerate(order):
        for later in order[number + len(ahead) : number + 3]:
            ahead.append(driver.engine.prepare(Request(prompt=asked[later], **fields)))
        driver.submit(ahead[0])
        live[ahead.popleft().id] = which
        while len(live) == 4 or (number == 39 and live):
            driver.step()
            for one in [one for one in live if driver.finished(one)]:
                assert driver.tokens(one) == truths[live.pop(one)]
                answered += 1
                finished = driver.finished(one)
                served += finished is not None and finished.usage.cached_tokens > 0
    assert answered == 40 and 0 < served < 40
    assert len(driver.engine._kept._caches) <= 2


def test_what_cannot_be_batched_runs_one_at_a_time(tmp_path: Path) -> None:
    driver = Driver(kinds.write(tmp_path / "m", "chunked"))
    assert driver.engine.capabilities.max_concurrency == 1
    assert any("one at a time" in note for note in driver.engine.describe()["notes"])


def test_kv_bits_that_cannot_be_are_refused_and_what_they_leave_alone_is_told(tmp_path: Path) -> None:
    plain = kinds.write(tmp_path / "plain", "plain")
    with pytest.raises(UsageError, match=r"plain cannot run with kv_bits=8 and kv_group_size=64: .*"):
        Driver(plain, kv_bits=8)  # its heads are 32 wide
    notes = Driver(kinds.write(tmp_path / "s", "sliding"), kv_bits=8, kv_group_size=32).engine.describe()
    assert "kv_bits leaves 1 layers as they are" in " ".join(notes["notes"])


def test_quantized_as_by_mlx_lms_own_cache(tmp_path: Path) -> None:
    """Which cannot be batched, so it is asked for each prompt alone."""
    driver = Driver(kinds.write(tmp_path / "m", "plain"), kv_bits=4, kv_group_size=32)
    model = driver.engine._loaded.model
    prompts = [prompt(n, seed=n) for n in (33, 8, 50)]
    for asked, reply in zip(prompts, driver.run(*(driver.start(one) for one in prompts)), strict=True):
        caches = [QuantizedKVCache(group_size=32, bits=4) for _ in model.layers]
        tokens, said = driver.encode(asked), []
        for _ in range(6):
            tokens = [int(model(mx.array([tokens]), cache=caches)[0, -1].argmax().item())]
            said += tokens
        assert reply == said


def test_bits_make_the_cache_smaller(tmp_path: Path) -> None:
    path = kinds.write(tmp_path / "m", "plain")
    whole, eight, four = (
        Driver(path, kv_bits=bits, kv_group_size=32).engine.describe()["kv_bytes_per_token"]
        for bits in (None, 8, 4)
    )
    values = 2 * 2 * 32  # two layers, keys and values, one head 32 wide
    assert whole == values * 4
    assert eight == values * 1 + values // 32 * 8  # and a scale and a bias, both float32, a group
    assert four == values // 2 + values // 32 * 8


@pytest.mark.parametrize("kind", KINDS)
def test_bounded_layers_count_once_and_growing_ones_for_every_token(tmp_path: Path, kind: str) -> None:
    engine = Driver(kinds.write(tmp_path / "m", kind)).engine
    token, fixed = (engine.describe()[f"kv_bytes_per_{what}"] for what in ("token", "request"))
    layer = 2 * 32 * 4  # keys and values of a token, one head 32 wide, float32
    assert (
        token
        == {"plain": 2, "sliding": 1, "recurrent": 0, "hybrid": 1, "listed": 2, "chunked": 1}[kind] * layer
    )
    assert (fixed > 0) == (kind != "plain")
    if kind in ("sliding", "chunked"):
        assert fixed == {"sliding": 1, "chunked": 3}[kind] * layer * kinds.WINDOW
    bound = engine.capabilities.kv_tokens
    assert bound is None if kind == "recurrent" else bound is not None and bound > 10**5
