"""Speculative decoding gives the text of plain decoding, whatever was drafted and wherever it ends."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from exocli import ModelNotFound, Sampling, Text, UsageError

from exo_mlx.draft import CATCH_UP, ModelDrafter
from exo_mlx.kv_budget import Footprint
from exo_mlx.options import LocalOptions
from exo_mlx.sampling import Sampler
from exo_mlx.speculative import Pace, SpeculativeBatch
from exo_ring.options import Options as RingOptions
from tests.exo_mlx import kinds
from tests.exo_mlx.kinds import Driver, prompt

GREEDY = Sampling(temperature=0.0)
SAMPLINGS = (
    GREEDY,
    Sampling(temperature=0.9, seed=4),
    Sampling(temperature=1.0, seed=5, top_p=0.9, top_k=40),
)


TEXT = "abcdabcd"
"""A prompt whose greedy reply is long enough."""


class Knowing:
    """A drafter that knows the reply (prompt and all) and errs now and then."""

    name = "knowing"
    limit = 7
    footprint = Footprint()

    def __init__(self, text: Sequence[int], errors: float) -> None:
        self.text = list(text)
        self.dice = random.Random(1)
        self.errors = errors
        self.place = 0
        self.drafted = 0

    def follow(self, uid: int, tokens: Sequence[int]) -> None:
        assert self.text[: len(tokens)] == list(tokens)
        self.place = len(tokens)

    def ready(self, chunk: int, known: bool) -> bool:
        return True

    def draft(self, pending: int, count: int, sampler: Sampler, width: int) -> mx.array | None:
        assert pending == self.text[self.place]
        right = self.text[self.place + 1 : self.place + 1 + count]
        self.drafted += len(right)
        wrong = [(token + 1) % width if self.dice.random() < self.errors else token for token in right]
        return mx.array(wrong, mx.uint32) if wrong else None


def reply(driver: Driver, request_id: str) -> list[tuple[int, float]]:
    texts = [event for event in driver.events[request_id] if isinstance(event, Text)]
    return [(entry["id"], entry["logprob"]) for text in texts for entry in text.logprobs or ()]


def same(one: list[tuple[int, float]], other: list[tuple[int, float]], tolerance: float) -> bool:
    """A pass of several rows sums in another order: the last digits differ, and what is rounded to 8 bits
    may fall on the other side."""
    tokens = [token for token, _ in one] == [token for token, _ in other]
    return tokens and all(abs(a - b) < tolerance for (_, a), (_, b) in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: kinds.write(tmp_path_factory.mktemp(kind), kind) for kind in ("plain", "sliding", "hybrid")}


@pytest.fixture(scope="module")
def alike(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model that often agrees with the plain one: its weights with some noise."""
    path = tmp_path_factory.mktemp("alike") / "alike"
    shutil.copytree(folders["plain"], path)
    weights: Any = mx.load(str(path / "model.safetensors"))
    mx.random.seed(9)
    noisy = {name: w + 0.003 * mx.abs(w).mean() * mx.random.normal(w.shape) for name, w in weights.items()}
    mx.save_safetensors(str(path / "model.safetensors"), noisy, {"format": "mlx"})
    return path


@pytest.fixture(scope="module")
def plain(folders: dict[str, Path]) -> Driver:
    return Driver(folders["plain"])


@pytest.fixture(scope="module")
def drafted(folders: dict[str, Path], alike: Path) -> Driver:
    return Driver(folders["plain"], draft=str(alike))


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many drafted tokens each pass accepted."""
    counts: list[int] = []
    learn = Pace.learn

    def noted(self: Pace, drafted: int, accepted: int) -> None:
        counts.append(accepted)
        learn(self, drafted, accepted)

    monkeypatch.setattr(Pace, "learn", noted)
    return counts


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", ["plain", "sliding", "quantized"])
def test_whatever_is_accepted_tokens_and_logprobs_are_those_of_plain_decoding(
    folders: dict[str, Path], kind: str, sampling: Sampling, lazy: bool
) -> None:
    options = {"kv_bits": 8, "kv_group_size": 32} if kind == "quantized" else {}
    path = folders["plain" if kind == "quantized" else kind]
    one = Driver(path, lazy=lazy, **options)
    count = 12 if kind == "quantized" else 50
    first = one.start(TEXT, count, sampling=sampling)
    one.run(first)
    wanted = reply(one, first)
    assert len(wanted) >= 12
    prepared = one.prepared[first]
    for errors in (0.0, 0.4):
        other = Driver(path, lazy=lazy, speculate="lookup", **options)
        knowing = other.batch.drafter = Knowing([*prepared.tokens, *(token for token, _ in wanted)], errors)
        second = other.start(TEXT, count, sampling=sampling)
        other.run(second)
        assert same(reply(other, second), wanted, 0.02 if kind == "quantized" else 1e-4)
        assert knowing.drafted > 3
        assert other.finished(second).usage == one.finished(first).usage  # type: ignore[union-attr]
        assert other.finished(second).reason == one.finished(first).reason  # type: ignore[union-attr]
        assert held(other, second) == held(one, first)
        if kind == "sliding":  # while the window is not full, and never after
            assert knowing.place < kinds.WINDOW
            assert f"end at {kinds.WINDOW} tokens" in str(other.engine.describe()["notes"])


def held(driver: Driver, request_id: str) -> set[int]:
    """Tokens in the KV that is kept of a request, layer by layer."""
    kept = driver.engine._kept._caches
    return {int(cache.offset) for entry in kept if entry.startswith(request_id) for cache in kept[entry]}


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_draft_model_and_lookup_give_the_same_text(
    folders: dict[str, Path], plain: Driver, drafted: Driver, accepted: list[int], sampling: Sampling
) -> None:
    looking = Driver(folders["plain"], speculate="lookup")
    text = TEXT
    wanted, _ = plain.ask(text, 50, sampling=sampling)
    assert drafted.ask(text, 50, sampling=sampling)[0] == wanted
    assert sum(accepted) > 10  # the draft was worth something, and not always right
    assert min(accepted) < 4
    assert looking.ask(text, 50, sampling=sampling)[0] == wanted


@pytest.mark.parametrize("limit", range(1, 10))
def test_max_tokens_within_what_a_pass_accepts(plain: Driver, drafted: Driver, limit: int) -> None:
    sampling = SAMPLINGS[1]
    one, other = (
        plain.start(prompt(20), limit, sampling=sampling),
        drafted.start(prompt(20), limit, sampling=sampling),
    )
    plain.run(one)
    drafted.run(other)
    assert drafted.tokens(other) == plain.tokens(one)
    found = drafted.finished(other)
    assert found is not None and found.reason == "length"
    assert found.usage.completion_tokens == limit
    assert held(drafted, other) == {20 + limit - drafted.lacking}


@pytest.mark.parametrize("lazy", [False, True])
def test_a_stop_string_within_what_a_pass_accepts(
    folders: dict[str, Path], plain: Driver, lazy: bool
) -> None:
    sampling = SAMPLINGS[1]
    wanted = plain.start(prompt(20), 60, sampling=sampling)
    (tokens,) = plain.run(wanted)
    decode = plain.engine._loaded.tokenizer.decode
    letters = [i for i, token in enumerate(tokens) if i > 2 and decode([token]).isascii()]
    ended = 0
    for place in letters[:3]:
        stop = (decode([tokens[place]]),)
        one = Driver(folders["plain"], lazy=lazy)
        other = Driver(folders["plain"], lazy=lazy, speculate="lookup")
        looking = other.batch.drafter
        other.batch.drafter = Knowing([*plain.prepared[wanted].tokens, *tokens], 0.0)
        a, b = (d.start(prompt(20), 60, sampling=sampling, stop=stop) for d in (one, other))
        one.run(a)
        other.run(b)
        first, second = one.finished(a), other.finished(b)
        assert first is not None and second is not None
        assert (second.reason, second.stop, second.usage) == (first.reason, first.stop, first.usage)
        assert text_of(other, b) == text_of(one, a)
        ended += second.stop is not None
        # What was accepted beyond the stop string's token is in no cache.
        ends = 20 + second.usage.completion_tokens
        assert held(one, a) == {ends - one.lacking} and held(other, b) <= {ends - other.lacking, ends}
        go_on = "".join(chr(33 + i) for i in range(5))
        again = prompt(20) + text_of(one, a) + go_on
        other.batch.drafter = looking
        assert other.ask(again, 6) == one.ask(again, 6)
    assert ended


def text_of(driver: Driver, request_id: str) -> str:
    return "".join(event.text for event in driver.events[request_id] if isinstance(event, Text))


def test_requests_that_come_and_go_beside_each_other(plain: Driver, drafted: Driver) -> None:
    asked = [
        (prompt(10 + 7 * number), 8 + 9 * number, {"sampling": SAMPLINGS[number % 3]}) for number in range(4)
    ]
    asked.append((prompt(15), 30, {"sampling": Sampling(temperature=0.0, repetition_penalty=1.3)}))
    wanted = [plain.ask(text, count, **more)[0] for text, count, more in asked]
    ids = []
    for text, count, more in asked:
        ids.append(drafted.start(text, count, **more))
        drafted.step(6)
    assert drafted.run(*ids) == wanted


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("sampling", "moments"), [(SAMPLINGS[0], (2, 5, 8, 11)), (SAMPLINGS[1], (2, 4, 7, 9))]
)
def test_a_cancel_at_any_step_and_the_same_again(
    folders: dict[str, Path],
    alike: Path,
    plain: Driver,
    sampling: Sampling,
    moments: tuple[int, ...],
    lazy: bool,
) -> None:
    text = prompt(41, 3)
    (wanted, _) = plain.ask(text, 30, sampling=sampling)
    driver = Driver(folders["plain"], lazy=lazy, draft=str(alike))
    phases = set()
    for steps in moments:
        one = driver.start(text, 30, sampling=sampling)
        driver.step(steps)
        if driver.finished(one) is not None:
            break
        receipt = driver.cancel(one).cancel
        assert receipt is not None
        phases.add(receipt.phase)
        lacking = driver.lacking if receipt.phase == "decode" else 0
        assert receipt.kept_tokens == receipt.processed + len(driver.tokens(one)) - lacking
        assert driver.tokens(one) == wanted[: len(driver.tokens(one))]
        again = driver.start(text, 30, sampling=sampling)
        assert driver.run(again) == [wanted]
        driver.engine.apply({"evict": list(driver.engine._kept._caches)})
    assert phases == {"prefill", "decode"}


def test_the_draft_model_catches_up_a_chunk_a_step(folders: dict[str, Path], alike: Path) -> None:
    driver = Driver(folders["plain"], draft=str(alike), chunk=16)
    drafter: Any = driver.engine._drafter
    one = driver.start(prompt(100), 30, sampling=SAMPLINGS[1])
    before, grown = 0, []
    while driver.finished(one) is None:
        driver.step()
        grown.append(len(drafter._held) - before)
        before = len(drafter._held)
    assert max(grown) <= 16 + CATCH_UP + drafter.limit
    assert before > 100
    two = driver.start(prompt(90), 6)  # what both texts begin with is there already
    driver.run(two)
    assert drafter._sure >= 90


def test_a_text_that_does_not_repeat_rests_from_drafts() -> None:
    pace = Pace(15)
    drafted = 0
    for _ in range(400):
        count = pace.next()
        if count:
            drafted += 1
            pace.learn(count, 0)
    assert drafted < 20
    pace = Pace(15)
    counts = []
    for _ in range(4):
        counts.append(pace.next())
        pace.learn(counts[-1], counts[-1])
    assert counts == [3, 7, 15, 15]
    pace.learn(15, 4)
    assert pace.next() == 7


def test_a_draft_with_a_wider_or_narrower_vocabulary_in_its_matrices(plain: Driver) -> None:
    drafter = ModelDrafter(plain.engine._loaded, 3)
    tokens: Any = plain.engine._loaded.tokenizer.encode(prompt(9))
    for width in (kinds.VOCABULARY - 4, kinds.VOCABULARY + 4):
        drafter.follow(0, tokens[:-1])
        assert drafter.ready(8, True)
        found = drafter.draft(tokens[-1], 3, plain.engine.sampler(plain_settings()), width)
        assert found is not None and found.shape == (3,) and int(found.max().item()) < width


def plain_settings() -> Any:
    from exo_mlx.sampling import Settings

    return Settings()


def test_weights_of_the_draft_are_counted(plain: Driver, drafted: Driver) -> None:
    assert drafted.engine.describe()["weight_bytes"] == 2 * plain.engine.describe()["weight_bytes"]  # type: ignore[operator]
    assert drafted.engine.describe()["speculation"] == "draft alike"
    assert plain.engine.describe()["speculation"] is None


def test_what_cannot_be_is_refused_in_a_sentence(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"recurrent or chunked layers.*leave out the option speculate"):
        Driver(folders["hybrid"], speculate="lookup")
    with pytest.raises(UsageError, match="keep the whole text"):
        Driver(folders["plain"], draft=str(folders["sliding"]))
    with pytest.raises(ModelNotFound, match="no file or folder"):
        Driver(folders["plain"], draft=str(tmp_path / "none"))
    other = tmp_path / "other"
    shutil.copytree(folders["plain"], other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["added_tokens"][0]["content"] = "<|another|>"
    tokenizer["model"]["vocab"]["<|another|>"] = tokenizer["model"]["vocab"].pop("<|endoftext|>")
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UsageError, match="another vocabulary"):
        Driver(folders["plain"], draft=str(other))
    with pytest.raises(ValueError, match="either speculate or draft"):
        LocalOptions(speculate="lookup", draft="x")
    for count in (0, 32):
        with pytest.raises(ValueError, match="from 1 to 31"):
            LocalOptions(speculate_tokens=count)


def test_a_ring_does_not_offer_it() -> None:
    assert not {"speculate", "speculate_tokens", "draft"} & {field.name for field in fields(RingOptions)}


@pytest.mark.real
@pytest.mark.soak
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.4, seed=3)])
def test_the_real_model(smollm2: Path, accepted: list[int], sampling: Sampling) -> None:
    """One engine, three drafters in turn: none, lookup, and the model itself as its draft."""
    driver = Driver(smollm2, chunk=64, speculate="lookup", context=512)
    lookup, never = driver.batch.drafter, Knowing([], 0.0)
    never.follow = never.ready = lambda *_: False  # type: ignore[method-assign,assignment]
    line = "The harbour of Ostwick has two piers and one old lighthouse.\n"
    drafters = (never, lookup, ModelDrafter(driver.engine._loaded, 4))
    found = []
    for drafter in drafters:
        accepted.clear()
        driver.batch.drafter = drafter
        found.append(driver.ask(2 * line + line[:11], 8, sampling=sampling)[0])
        assert (sum(accepted) > 3) == (drafter is not never)
    assert found[0] == found[1] == found[2]
    assert isinstance(driver.batch, SpeculativeBatch)
