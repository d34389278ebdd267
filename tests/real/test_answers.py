"""What the real model answers through worker and session, one request and many."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from exocli import Message, Part, Request, Sampling, Unsupported, plugins
from exocli.runtime.session import Session

from tests.real.asking import DOCUMENT, Answer, answer, ask

CAPITAL = "What is the capital of France?"


async def test_paris(session: Session) -> None:
    got = await answer(session, ask(CAPITAL))
    assert "Paris" in got.text
    assert got.finished.reason == "stop"
    assert got.finished.usage.completion_tokens == len(got.pieces)
    assert got.finished.usage.prompt_tokens == got.progress[-1].total == got.progress[-1].processed


async def test_two_ranks_say_the_same(session: Session) -> None:
    """A pipeline of unaligned stages, in processes of its own."""
    story = ask("Tell me about the history of Paris in three sentences.", max_tokens=16)
    alone = await answer(session, story)
    options = {"ranks": 2, "split": (11, 19), "chunk": 32}
    async with session.like(plugins.backend("ring"), **options) as ring:
        shared = await answer(ring, replace(story, id=story.id + "ring"))
        assert "Paris" in (await answer(ring, ask(CAPITAL))).text
    assert shared.text == alone.text and len(shared.pieces) > 5


async def test_a_follow_up_prefills_only_what_is_new(session: Session) -> None:
    question = DOCUMENT[:400] + " Say hello."
    first = await answer(session, ask(question, max_tokens=6))
    second = await answer(session, ask(question, first.text, CAPITAL, max_tokens=6))
    assert second.cached >= first.finished.usage.prompt_tokens
    assert second.finished.usage.prompt_tokens - second.cached < 60


async def test_two_chats_with_one_beginning_do_not_mix(session: Session) -> None:
    """B20: alternating, each equals what it says alone."""
    left = Message(role="system", content="You answer in one short sentence.")
    one = Request(messages=(left, Message(role="user", content=CAPITAL)), max_tokens=8)
    two = Request(messages=(left, Message(role="user", content="What is two plus two?")), max_tokens=8)
    alone = [(await answer(session, replace(r, id=r.id + "a"))).text for r in (one, two)]
    for request, expected in zip((one, two), alone, strict=True):
        assert (await answer(session, request)).text == expected


def same_or_near_tie(batched: Answer, alone: Answer) -> None:
    """In a batch sums are taken in another order: where a token differs, the two must be a near tie."""
    for mine, theirs in zip(batched.logprobs, alone.logprobs, strict=False):
        if mine["id"] != theirs["id"]:
            other = {row[1]: row[2] for row in mine["top"]}
            assert theirs["id"] in other
            assert abs(other[theirs["id"]] - mine["logprob"]) < 1e-3
            return
    assert batched.text == alone.text


async def test_eight_at_once_equal_their_solo_runs(session: Session) -> None:
    questions = [f"Write one sentence about the number {n}." for n in range(8)]
    requests = [ask(q, logprobs=5, max_tokens=5) for q in questions]
    together = await asyncio.gather(*(answer(session, r) for r in requests))
    for request, got in zip(requests, together, strict=True):
        same_or_near_tie(got, await answer(session, replace(request, id=request.id + "solo")))


async def test_seeds(session: Session) -> None:
    """B50: reproducible in parallel with others, and distinct."""

    def drawn(seed: int | None) -> Request:
        return ask("Tell me a story.", sampling=Sampling(temperature=1.0, seed=seed), max_tokens=8)

    alone = (await answer(session, drawn(5))).text
    one, two, other, free = await asyncio.gather(*(answer(session, drawn(seed)) for seed in (5, 5, 6, None)))
    assert one.text == two.text == alone
    assert len({alone, other.text, free.text}) == 3


async def test_stop_strings_span_tokens_and_are_never_shown(session: Session) -> None:
    """B38: texts equal, nothing of the stop emitted."""
    whole = (await answer(session, ask(CAPITAL))).text
    got = await answer(session, ask(CAPITAL, stop=("nce is Pa", "never said")))
    assert got.text == whole.split("nce is Pa")[0]
    assert (got.finished.reason, got.finished.stop) == ("stop", "nce is Pa")
    held = await answer(session, ask(CAPITAL, stop=("Paris. Not followed by this",)))
    assert held.text == whole
    assert held.finished.stop is None


async def test_max_tokens_is_length(session: Session) -> None:
    got = await answer(session, ask(CAPITAL, max_tokens=3))
    assert got.finished.reason == "length"
    assert got.finished.usage.completion_tokens == 3


async def test_logprobs(session: Session) -> None:
    got = await answer(session, ask(CAPITAL, logprobs=3))
    assert "".join(str(entry["token"]) for entry in got.logprobs if entry["token"] in got.text) == got.text
    for entry in got.logprobs:
        assert len(entry["top"]) == 3
        assert entry["top"][0][2] == pytest.approx(entry["logprob"], abs=1e-5)


async def test_characters_that_arrive_in_pieces(session: Session) -> None:
    prompt = "ñ, 日本語, 👩‍👩‍👧, and one emoji after the other: 🙂🙃🙂🙃🙂🙃🙂🙃🙂🙃🙂🙃"
    got = await answer(session, Request(task="complete", prompt=prompt, max_tokens=12))
    assert any(ord(c) > 0xFFFF for c in got.text)
    assert all("\ufffd" not in piece for piece in got.pieces[:-1])


async def test_continue_goes_on_where_it_ended(session: Session) -> None:
    got = await answer(session, ask(CAPITAL, "The capital of France", continue_last=True))
    assert got.text.startswith(" is")
    assert "Paris" in got.text


async def test_completion_without_a_template(session: Session) -> None:
    got = await answer(session, Request(task="complete", prompt="1, 2, 3, 4, 5,", max_tokens=6))
    assert got.text.startswith(" 6")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(), "no messages"),
        (Request(messages=(Message(role="user", content=None),)), "messages[0] (user) has no content"),
        (Request(messages=(Message(role="user", content=(Part(kind="image", path="/x"),)),)), "image input"),
        (Request(task="complete", prompt=""), "prompt is empty"),
        (ask(CAPITAL, max_tokens=0), "max_tokens must be at least 1"),
        (ask(CAPITAL, max_tokens=-1), "max_tokens must be at least 1"),
        (ask(CAPITAL, stop=("",)), "stop string"),
        (ask(CAPITAL, sampling=Sampling(temperature=-1.0)), "temperature must be from"),
        (ask(CAPITAL, sampling=Sampling(top_p=float("nan"))), "top_p must be from"),
        (ask(CAPITAL, logprobs=99), "top_logprobs"),
        (ask(CAPITAL, continue_last=True), "Only an assistant's message"),
        (ask(CAPITAL, tools=({"name": "x"},)), "tools"),
        (ask("word " * 9000), "takes 8192"),
    ],
)
async def test_what_is_wrong_is_told_in_one_sentence(session: Session, request_: Request, words: str) -> None:
    got = await answer(session, replace(request_, id=f"bad-{abs(hash(words))}"))
    assert got.finished.reason == "error"
    assert got.finished.error is not None
    message = got.finished.error["message"]
    assert words in message
    assert "\n" not in message


async def test_over_the_context_has_both_counts(session: Session) -> None:
    """B51"""
    got = await answer(session, ask("word " * 9000))
    error = got.finished.error or {}
    assert error["code"] == "context_length_exceeded"
    assert error["details"]["context"] == 8192
    assert error["details"]["prompt_tokens"] > 9000


async def test_parts_and_null_content_with_tool_calls(session: Session) -> None:
    """B46: three text parts are one text."""
    parts = tuple(Part(text=text) for text in ("What is the ", "capital of ", "France?"))
    whole = await session.prepare(ask(CAPITAL, id="whole"))
    got = await session.prepare(Request(messages=(Message(role="user", content=parts),), id="parts"))
    for name in ("whole", "parts"):
        session.forget(name)
    assert got.tokens == whole.tokens


async def test_huge_max_tokens_mean_up_to_the_context(session: Session) -> None:
    prepared = await session.prepare(ask(CAPITAL, max_tokens=10**9, id="huge"))
    session.forget("huge")
    assert prepared.max_tokens == 8192 - prepared.prompt_tokens


async def test_tools_are_refused_where_the_template_does_not_take_them(session: Session) -> None:
    tool = {"type": "function", "function": {"name": "time"}}
    with pytest.raises(Unsupported, match="smollm2 on mlx does not offer tools"):
        await session.prepare(ask("What time is it?", tools=(tool,)))
