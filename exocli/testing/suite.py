"""What every backend must do, as tests: pytest --pyargs exocli.testing.suite --exo-backend NAME

Each test asks for no more than the backend's capabilities name, and goes through the same session as every
command does. `--exo-model` and `--exo-option KEY=VALUE` choose what is opened.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from exocli import plugins
from exocli.backend import Capabilities
from exocli.cli import plugin_check
from exocli.errors import ExoError
from exocli.testing.kit import Kit, Reply, long_text, request
from exocli.types import Embedding, Event, Progress, Request, Sampling, Text, new_id

QUESTION = "Say a few words about the sea."


@pytest.fixture(scope="module")
def name(pytestconfig: pytest.Config) -> str:
    found = pytestconfig.getoption("--exo-backend")
    if not found:
        raise pytest.UsageError("name the backend: --exo-backend NAME")
    return str(found)


@pytest.fixture(scope="module")
def opened(name: str, pytestconfig: pytest.Config) -> Iterator[Kit]:
    try:
        kit = Kit(name, pytestconfig.getoption("--exo-model"), pytestconfig.getoption("--exo-option"))
    except ExoError as error:
        pytest.fail(error.message, pytrace=False)
    yield kit
    kit.close()


@pytest.fixture
def kit(opened: Kit) -> Kit:
    """For the tests of engines that chat."""
    if "chat" not in opened.capabilities.tasks:
        pytest.skip("it does not chat")
    return opened


@pytest.fixture
def embedder(opened: Kit) -> Kit:
    """For the tests of engines that make embeddings."""
    if "embed" not in opened.capabilities.tasks:
        pytest.skip("it makes no embeddings")
    return opened


def still_answers(kit: Kit) -> None:
    """The session and the engine are well after whatever was done to them."""
    assert kit.session.flights == {}
    assert kit.ask(QUESTION).finished.reason in ("stop", "length")


# -------------------------------------------------------------------------------------- the description


def test_what_the_plugin_names_can_be_imported(name: str) -> None:
    registered = plugins.manager().backends[name]
    assert plugin_check.problems_of(registered.plugin, registered.distribution) == []


def test_the_engine_narrows_what_the_spec_promises(opened: Kit) -> None:
    bound, own = opened.choice.spec.capabilities, opened.capabilities
    assert isinstance(own, Capabilities)
    assert set(own.tasks) <= set(bound.tasks) and set(own.inputs) <= set(bound.inputs)
    assert 1 <= own.max_concurrency <= bound.max_concurrency
    for flag in ("tools", "schema", "logprobs", "seed", "penalties", "continue_last"):
        assert getattr(own, flag) <= getattr(bound, flag), flag


# --------------------------------------------------------------------------------------------- answering


def test_it_answers(kit: Kit) -> None:
    reply = kit.ask(QUESTION)
    assert reply.finished.reason in ("stop", "length")
    assert reply.text.strip()
    assert reply.finished.usage.prompt_tokens > 0
    assert 0 < reply.finished.usage.completion_tokens <= 16


def test_progress_goes_forward_and_comes_before_the_text(kit: Kit) -> None:
    reply = kit.ask(request(long_text(60)))
    steps = reply.of(Progress)
    assert [p.processed for p in steps] == sorted(p.processed for p in steps)
    assert all(0 <= p.cached <= p.processed <= p.total for p in steps)
    kinds = [type(event) for event in reply.events if isinstance(event, (Progress, Text))]
    assert kinds == sorted(kinds, key=lambda kind: kind is Text)


def test_one_token_is_one_token(kit: Kit) -> None:
    finished = kit.ask(request(QUESTION, max_tokens=1)).finished
    assert finished.reason in ("stop", "length") and finished.usage.completion_tokens <= 1


def test_greedy_twice_is_the_same(kit: Kit) -> None:
    assert kit.ask(QUESTION).text == kit.ask(QUESTION).text


def test_a_seed_repeats_and_another_need_not(kit: Kit) -> None:
    if not kit.capabilities.seed:
        pytest.skip("no seed")
    drawn = [
        kit.ask(request(QUESTION, sampling=Sampling(temperature=1.5, seed=seed))).text
        for seed in (1, 1, 2, 3, 4)
    ]
    assert drawn[0] == drawn[1] and len(set(drawn)) > 1


def test_a_reply_follows_its_schema(kit: Kit) -> None:
    if not kit.capabilities.schema:
        pytest.skip("no formats")
    pet = {"kind": {"enum": ["cat", "dog"]}, "tame": {"type": "boolean"}}
    schema = {"type": "object", "properties": pet, "required": [*pet], "additionalProperties": False}
    asked = request("Describe a pet.", max_tokens=100, format={"type": "json_schema", "schema": schema})
    whole, cut = kit.ask_all(asked, replace(asked, id=new_id(), max_tokens=1))
    assert whole.finished.reason == "stop"
    found = json.loads(whole.text)
    assert set(found) == {*pet} and found["kind"] in ("cat", "dog") and isinstance(found["tame"], bool)
    assert cut.finished.reason == "length"
    refused = kit.ask(replace(asked, id=new_id(), format={"type": "no such type"})).finished
    assert refused.error is not None and refused.error["code"] in ("bad_request", "unsupported")
    still_answers(kit)


def test_two_at_once(kit: Kit) -> None:
    both = kit.ask_all(request(QUESTION), request(long_text(100)))
    assert all(reply.finished.reason in ("stop", "length") and reply.text for reply in both)


def test_more_than_it_takes_at_once_wait_their_turn(kit: Kit) -> None:
    count = min(kit.capabilities.max_concurrency, 8) + 2
    replies = kit.ask_all(*(request(f"{QUESTION} {n}", max_tokens=4) for n in range(count)))
    assert {reply.finished.reason for reply in replies} <= {"stop", "length"}


# --------------------------------------------------------------------------------------------- refusing


def test_what_it_does_not_offer_is_refused_by_name(kit: Kit) -> None:
    own = kit.capabilities
    refused: dict[str, tuple[bool, dict[str, Any]]] = {
        "logprobs": (own.logprobs, {"logprobs": 1}),
        "tools": (own.tools, {"tools": ({"type": "function", "function": {"name": "f"}},)}),
        "format": (own.schema, {"format": {"type": "object"}}),
        "task": ("image" in own.tasks, {"task": "image"}),
    }
    for field, (offered, more) in refused.items():
        if not offered:
            finished = kit.ask(request(QUESTION, **more)).finished
            assert finished.reason == "error" and finished.error is not None, field
            assert finished.error["code"] == "unsupported", field
            assert finished.error["details"]["field"] == field
    still_answers(kit)


def test_a_bad_request_hurts_nobody(kit: Kit) -> None:
    nothing = request(QUESTION, max_tokens=8)
    bad, good = kit.ask_all(replace(nothing, id=new_id(), messages=()), nothing)
    assert bad.finished.error is None or bad.finished.error["code"] == "bad_request"
    assert good.finished.reason in ("stop", "length")
    still_answers(kit)


def test_a_prompt_over_the_context_gives_both_counts(kit: Kit) -> None:
    context = kit.capabilities.context
    if context is None or context > 20_000:
        pytest.skip("its context is not known, or too long to fill here")
    finished = kit.ask(request(long_text(context + 10))).finished
    assert finished.reason == "error" and finished.error is not None
    assert finished.error["code"] == "context_length_exceeded"
    assert finished.error["details"]["context"] == context
    assert finished.error["details"]["prompt_tokens"] > context
    still_answers(kit)


# --------------------------------------------------------------------------------------------- stopping


def in_prefill(event: Event) -> bool:
    return isinstance(event, Progress) and event.processed < event.total


def test_stopped_before_it_began(kit: Kit) -> None:
    finished = kit.ask(request(QUESTION), cancel_at=lambda event: True).finished
    assert finished.reason in ("cancelled", "stop", "length")
    still_answers(kit)


def test_stopped_while_it_writes(kit: Kit) -> None:
    if kit.capabilities.cancel_decode == "none":
        pytest.skip("it cannot stop while it writes")
    asked = request(long_text(30), max_tokens=200)
    reply = kit.ask(asked, cancel_at=lambda event: isinstance(event, Text))
    if reply.finished.reason == "cancelled":  # it may have ended by itself before
        assert reply.finished.cancel is not None
        assert reply.finished.cancel.phase == "decode"
        assert reply.finished.usage.completion_tokens < 200
    still_answers(kit)


def test_stopped_while_it_reads_and_asked_again(kit: Kit) -> None:
    if kit.capabilities.cancel_prefill == "none":
        pytest.skip("it cannot stop while it reads")
    asked = long_text(150)
    stopped = kit.ask(request(asked), cancel_at=in_prefill).finished
    assert stopped.reason == "cancelled" and stopped.cancel is not None
    receipt = stopped.cancel
    assert receipt.phase == "prefill" and 0 <= receipt.processed < receipt.total
    again = kit.ask(request(asked))
    assert again.finished.reason in ("stop", "length")
    if kit.capabilities.kv_on_cancel == "kept":
        assert receipt.kept_tokens, "what was read is kept"
        assert again.finished.usage.cached_tokens >= receipt.kept_tokens
    still_answers(kit)


def test_a_stop_does_not_touch_the_others(kit: Kit) -> None:
    alone = kit.ask(request(QUESTION)).text

    async def side_by_side() -> tuple[str, str]:
        stopped, other = await asyncio.gather(
            kit.asking(request(long_text(60)), cancel_at=lambda event: isinstance(event, Progress)),
            kit.asking(request(QUESTION)),
        )
        return stopped.finished.reason, other.text

    reason, text = kit.run(side_by_side())
    assert reason in ("cancelled", "stop", "length")
    assert text.strip() and text.split()[0] == alone.split()[0]


def test_a_reader_who_leaves(kit: Kit) -> None:
    kit.leave(request(long_text(60), max_tokens=200))
    still_answers(kit)


def test_stopped_at_twenty_random_points(kit: Kit) -> None:
    points = random.Random(1)
    for number in range(20):
        left = points.randrange(1, 12)

        def now(event: Event) -> bool:
            nonlocal left
            left -= 1
            return left == 0

        kit.ask(request(f"{long_text(15)} {number}", max_tokens=24), cancel_at=now)
    still_answers(kit)


def test_killed_while_it_writes(kit: Kit) -> None:
    if kit.choice.spec.place != "worker":
        pytest.skip("it runs in no worker")
    shot: list[int] = []

    def shoot(event: Event) -> bool:
        if isinstance(event, (Progress, Text)) and not shot:
            shot.extend(kit.session.pids)
            os.kill(shot[0], signal.SIGKILL)
        return False

    finished = kit.ask(request(long_text(60), max_tokens=200), cancel_at=shoot).finished
    if finished.error is not None:  # a quick one may have said everything before
        assert finished.error["code"] == "worker_died"
    else:
        assert finished.reason in ("stop", "length")
    still_answers(kit)
    assert not {*shot} & {*kit.session.pids}


def test_killed_and_back_again(kit: Kit) -> None:
    if kit.choice.spec.place != "worker":
        pytest.skip("it runs in no worker")
    kit.run(kit.session.kill())
    still_answers(kit)


# ------------------------------------------------------------------------------------------- embeddings


def embed(*texts: str, **more: Any) -> Request:
    return Request(task="embed", inputs=texts, **more)


def vectors(reply: Reply, count: int) -> list[tuple[float, ...]]:
    """Of every text, in order."""
    found = {event.index: event.vector for event in reply.of(Embedding)}
    assert len(reply.of(Embedding)) == count and sorted(found) == list(range(count)), "one for each text"
    assert len({len(vector) for vector in found.values()}) == 1, "all of one length"
    assert all(math.isfinite(number) for vector in found.values() for number in vector)
    return [found[index] for index in range(count)]


def test_every_text_has_its_vector(embedder: Kit) -> None:
    texts = [f"{QUESTION} {'and more ' * n}" for n in range(20)]
    reply = embedder.ask(embed(*texts))
    assert reply.finished.reason == "stop" and reply.finished.usage.prompt_tokens > 0
    together = vectors(reply, len(texts))
    for index in (0, 13):
        (alone,) = vectors(embedder.ask(embed(texts[index])), 1)
        assert max(abs(a - b) for a, b in zip(alone, together[index], strict=True)) < 1e-3, "as alone"


def test_embeddings_of_several_at_once(embedder: Kit) -> None:
    few, many = embedder.ask_all(embed("a", "b"), embed(*(f"text {n}" for n in range(50))))
    assert few.finished.reason == many.finished.reason == "stop"
    assert len(vectors(few, 2)) + len(vectors(many, 50)) == 52


def test_embeddings_that_nobody_wants_any_more(embedder: Kit) -> None:
    asked = embed(*(f"{QUESTION} {n}" for n in range(500)))
    reply = embedder.ask(asked, cancel_at=lambda event: isinstance(event, (Progress, Embedding)))
    assert reply.finished.reason in ("cancelled", "stop")  # it may have ended by itself before
    assert len(vectors(embedder.ask(embed("after")), 1)) == 1
    assert embedder.session.flights == {}


def test_nothing_to_embed_is_a_bad_request(embedder: Kit) -> None:
    finished = embedder.ask(embed()).finished
    assert finished.error is not None and finished.error["code"] == "bad_request"
