"""The embedding engine: fair batches, cancels between them, refusals; then in a worker of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from exocli import (
    BadRequest,
    CancelToken,
    ContextOverflow,
    Embedding,
    Event,
    Finished,
    OpenContext,
    Prepared,
    Progress,
    Request,
    StepEngine,
    UsageError,
    plugins,
)
from exocli.runtime.session import Session

from exo_mlx.embedding import EmbeddingEngine
from exo_mlx.opening import open_engine
from exo_mlx.options import LocalOptions
from tests.exo_mlx import encoders


def opened(path: Path, cache: Path, **options: Any) -> StepEngine:
    def nothing(*_: object) -> None:
        return

    return open_engine(
        OpenContext(
            backend="mlx",
            model=str(path),
            options=LocalOptions(**options),
            cache_dir=cache,
            log=nothing,
            progress=nothing,
            ask=nothing,
            cancel=CancelToken(),
        )
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    return encoders.write_folder(folder, normalize=True, matryoshka_dimensions=[16])


@pytest.fixture
def engine(tiny: Path, tmp_path: Path) -> Iterator[EmbeddingEngine]:
    """Sixteen tokens a step."""
    engine = opened(tiny, tmp_path, chunk=16)
    assert isinstance(engine, EmbeddingEngine)
    yield engine
    engine.close()


def embed(*texts: str, **fields: Any) -> Request:
    return Request(task="embed", inputs=texts, **fields)


def until_empty(engine: StepEngine) -> list[Sequence[Event]]:
    """The events of each step, until one has none."""
    steps = []
    while events := engine.step():
        steps.append(events)
    return steps


def submit(engine: StepEngine, request: Request) -> tuple[Prepared, CancelToken]:
    prepared, cancel = engine.prepare(request), CancelToken()
    engine.submit(prepared, cancel)
    return prepared, cancel


def vectors(events: Sequence[Event], request: Request) -> list[tuple[float, ...]]:
    found = {e.index: e.vector for e in events if isinstance(e, Embedding) and e.id == request.id}
    assert sorted(found) == list(range(len(request.inputs)))
    return [found[index] for index in sorted(found)]


def test_what_it_says_of_itself(engine: EmbeddingEngine) -> None:
    assert engine.capabilities.tasks == ("embed",) and engine.capabilities.context == 40
    facts = engine.describe()
    assert (facts["dimensions"], facts["pooling"], facts["dtype"]) == (32, "mean", "float32")
    assert (engine.warm_up() or 0.0) > 0


def test_a_step_is_bounded_and_every_text_has_its_vector(engine: EmbeddingEngine) -> None:
    request = embed("abcdef", "a", "", "hello", "abc " * 3, "a")
    prepared, _ = submit(engine, request)
    lengths = prepared.settings["lengths"]
    assert prepared.prompt_tokens == len(prepared.tokens) == sum(lengths)
    steps = until_empty(engine)
    assert len(steps) > 2
    for events in steps:
        done = [lengths[e.index] for e in events if isinstance(e, Embedding)]
        assert len(done) * max(done) <= 16 or len(done) == 1
    events = [event for step in steps for event in step]
    said = [e.processed for e in events if isinstance(e, Progress)]
    assert said == sorted(said) and (said[0], said[-1]) == (0, prepared.prompt_tokens)
    found = vectors(events, request)
    assert found[1] == pytest.approx(found[5]) and found[0] != pytest.approx(found[3])
    assert all(abs(np.linalg.norm(vector) - 1) < 1e-5 for vector in found)
    last = events[-1]
    assert isinstance(last, Finished) and last.reason == "stop"
    assert last.usage.prompt_tokens == prepared.prompt_tokens


def test_a_batch_gives_what_each_text_gives_alone(engine: EmbeddingEngine) -> None:
    request = embed(*("abcdefgh"[: n + 1] for n in range(8)))
    submit(engine, request)
    together = vectors([e for step in until_empty(engine) for e in step], request)
    for text, vector in zip(request.inputs, together, strict=True):
        alone = embed(text)
        submit(engine, alone)
        (own,) = vectors([e for step in until_empty(engine) for e in step], alone)
        assert own == pytest.approx(vector, abs=1e-5)


def test_a_short_request_does_not_wait_for_a_long_one(engine: EmbeddingEngine) -> None:
    long, short = embed(*["abcdef"] * 40), embed("ab", "cd")
    submit(engine, long)
    engine.step()
    submit(engine, short)
    ends = []
    for _ in range(3):
        ends += [e.id for e in engine.step() if isinstance(e, Finished)]
    assert ends == [short.id]


def test_a_cancel_is_seen_between_batches_and_touches_nobody_else(engine: EmbeddingEngine) -> None:
    stopped, other = embed(*["abcdef"] * 40), embed("ab", "cdefg")
    prepared, cancel = submit(engine, stopped)
    first = engine.step()
    submit(engine, other)
    cancel.cancel()
    rest = [event for step in until_empty(engine) for event in step]
    mine = [event for event in rest if event.id == stopped.id]
    assert len(mine) == 1, "silent but for its end"
    assert isinstance(mine[0], Finished) and mine[0].reason == "cancelled" and mine[0].cancel is not None
    receipt = mine[0].cancel
    told = sum(prepared.settings["lengths"][e.index] for e in first if isinstance(e, Embedding))
    assert (receipt.phase, receipt.kept_tokens) == ("prefill", 0)
    assert 0 < receipt.processed == told < receipt.total == prepared.prompt_tokens
    assert len(vectors(rest, other)) == 2 and engine.step() == []


def test_texts_that_are_too_long(engine: EmbeddingEngine) -> None:
    with pytest.raises(ContextOverflow, match=r"Text 2 of 2 has 62 tokens; tiny takes 40") as caught:
        engine.prepare(embed("a", "a" * 60))
    assert caught.value.details["prompt_tokens"] == 62 and caught.value.details["context"] == 40
    assert engine.prepare(embed("a", "a" * 60, truncate=True)).settings["lengths"] == [3, 40]
    assert engine.prepare(embed("a" * 38)).prompt_tokens == 40


def test_a_length_that_vectors_can_have_or_not(engine: EmbeddingEngine) -> None:
    with pytest.raises(BadRequest, match="32 dimensions or 16, not 8") as caught:
        engine.prepare(embed("a", dimensions=8))
    assert caught.value.details["field"] == "dimensions"
    whole, short = embed("abc"), embed("abc", dimensions=16)
    for request in (whole, short):
        submit(engine, request)
    events = [event for step in until_empty(engine) for event in step]
    (cut,) = vectors(events, short)
    expected = encoders.unit(np.array(vectors(events, whole)[0][:16]))
    assert len(cut) == 16 and np.abs(np.array(cut) - expected).max() < 1e-5


def test_text_that_is_none(engine: EmbeddingEngine) -> None:
    with pytest.raises(BadRequest, match="not Unicode"):
        engine.prepare(embed("a", "\ud800"))


def test_a_smaller_limit_can_be_asked_for(tiny: Path, tmp_path: Path) -> None:
    assert opened(tiny, tmp_path, context=10).capabilities.context == 10
    assert opened(tiny, tmp_path, context=1000).capabilities.context == 40
    with pytest.raises(UsageError, match="no adapter goes over it"):
        opened(tiny, tmp_path, adapter="x")


# ------------------------------------------------------------------------------------ in a worker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    """The real model in its worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXO_HOME", str(tmp_path_factory.mktemp("home")))
        async with Session(spec=plugins.backend("mlx"), model="minilm", path=str(minilm)) as opened:
            yield opened


async def asked(session: Session, request: Request, cancel: CancelToken | None = None) -> list[Event]:
    return [event async for event in session.stream(request, cancel)]


@pytest.mark.asyncio(loop_scope="module")
async def test_in_a_worker_the_same_vectors_come_out(session: Session, minilm: Path) -> None:
    request = embed("A man is eating food.", "", "漢字 😀")
    events = await asked(session, request)
    last = events[-1]
    assert isinstance(last, Finished) and last.reason == "stop"
    assert last.timing.prefill_tps > 0 and last.timing.total_s > 0
    weights = encoders.read_weights(minilm)
    config = {**encoders.SHAPE, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 6}
    expected = encoders.unit(encoders.forward(weights, config, [101, 102]).mean(axis=0))
    assert np.abs(np.array(vectors(events, request)[1]) - expected).max() < 1e-4


@pytest.mark.asyncio(loop_scope="module")
async def test_what_it_is_not_for_is_refused_by_name(session: Session) -> None:
    last = (await asked(session, Request(prompt="hi", task="complete", model="minilm")))[-1]
    assert isinstance(last, Finished) and last.error is not None
    assert last.error["message"] == "minilm cannot complete a text, only make embeddings."
    last = (await asked(session, embed()))[-1]
    assert isinstance(last, Finished) and last.error is not None
    assert last.error["details"]["field"] == "input"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cancel_of_thousands_of_texts(session: Session) -> None:
    request, cancel = embed(*(f"sentence number {n} of many" for n in range(3000))), CancelToken()
    seen = 0
    async for event in session.stream(request, cancel):
        seen += isinstance(event, Embedding)
        if seen:
            cancel.cancel()
        if isinstance(event, Finished):
            assert event.reason == "cancelled" and event.cancel is not None
            assert 0 < event.cancel.processed < event.cancel.total
            assert event.cancel.confirmed and event.cancel.ranks == 1 and event.cancel.latency_ms < 2000
    assert seen < 3000
    assert isinstance((await asked(session, embed("after")))[-1], Finished)
