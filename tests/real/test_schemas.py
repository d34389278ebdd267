"""Structured output of the real model: valid for a validator, whatever is asked, however it is asked."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exocli import Event, Progress, Request, Sampling, Text
from exocli.runtime.session import Session
from jsonschema import Draft202012Validator

from tests.real.asking import DOCUMENT, answer, ask
from tests.real.schemas import NODE, SCHEMAS, Schema, obj
from tests.real.test_run import EXO, Spawn, spawn
from tests.server.apis import CHAT
from tests.server.serving import Serving

__all__ = ["spawn"]
PERSON = obj(name=True, age={"type": "integer", "minimum": 0, "maximum": 120})


def format_of(schema: Schema) -> dict[str, Any]:
    return {"type": "json_schema", "schema": schema}


def check(text: str, schema: Schema) -> None:
    checker = Draft202012Validator.FORMAT_CHECKER
    Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))


async def test_a_batch_of_schemas_and_a_talk_beside_them(session: Session) -> None:
    chosen = [SCHEMAS[i] for i in (4, 24, 39, 46)]
    requests = [ask("Answer in JSON.", format=format_of(schema), max_tokens=60) for schema in chosen]
    *answers, talk = await asyncio.gather(
        *(answer(session, request) for request in [*requests, ask("What is the capital of France?")])
    )
    for got, schema in zip(answers, chosen, strict=True):
        assert got.finished.reason == "stop"
        check(got.text, schema)
        assert len(got.pieces) > 1 or len(got.text) < 10
    assert "Paris" in talk.text


async def test_a_tiny_limit_gives_length(session: Session) -> None:
    got = await answer(session, ask("Describe a person.", format=format_of(PERSON), max_tokens=3))
    assert got.finished.reason == "length"
    assert got.finished.usage.completion_tokens == 3


def after_prefill(event: Event) -> bool:
    return isinstance(event, Progress) and event.processed >= 80


def third_text() -> Any:
    seen: list[Event] = []
    return lambda event: isinstance(event, Text) and (seen.append(event) or len(seen) == 3)


@pytest.mark.soak
@pytest.mark.parametrize("fresh", [False, True], ids=["again", "fresh"])
async def test_cancelled_and_sent_again_equals_the_uncancelled_run(session: Session, fresh: bool) -> None:
    """In prefill, then while it writes; `fresh` compares with a worker that has no cache."""
    text = f"{fresh} {DOCUMENT[:600]} Which item is the best one, and what is its value?"
    schema = obj(item={"type": "string", "maxLength": 10}, value={"type": "integer", "maximum": 100})
    sampling = Sampling(temperature=0.8, seed=4)
    request = ask(text, format=format_of(schema), max_tokens=40, sampling=sampling)
    for phase, at in (("prefill", after_prefill), ("decode", third_text())):
        cut = await answer(session, replace(request, id=f"{phase}{fresh}"), at=at)
        receipt = cut.finished.cancel
        assert receipt is not None and (receipt.phase, receipt.kept_tokens) == (phase, receipt.kept_tokens)
        assert receipt.kept_tokens and receipt.kept_tokens >= 80
    again = await answer(session, replace(request, id=f"again{fresh}"))
    assert again.cached >= 80
    check(again.text, schema)
    assert again.finished.reason == "stop"
    assert again.text.startswith(cut.text) and cut.text
    if fresh:
        await session.kill()
    whole = await answer(session, replace(request, id=f"whole{fresh}"))
    assert (whole.cached == 0) == fresh
    assert whole.text == again.text


async def test_penalties_and_bias(session: Session) -> None:
    """A word that was said costs more each time; a token that is banned never comes."""

    async def said(**asked: Any) -> list[int]:
        sampling = Sampling(temperature=0.0, **asked)
        prompt = "yes and yes and yes and yes and yes and"
        request = Request(task="complete", prompt=prompt, sampling=sampling, logprobs=0, max_tokens=10)
        return [entry["id"] for entry in (await answer(session, request)).logprobs]

    plain, penalised = await asyncio.gather(said(), said(frequency_penalty=2.0, presence_penalty=2.0))
    assert len(set(plain)) == 2
    assert len(set(penalised)) > 4
    assert plain[0] not in await said(logit_bias={plain[0]: -100.0})


async def test_a_schema_for_a_base_models_task(session: Session) -> None:
    request = Request(
        task="complete",
        prompt="The answer is",
        format={"type": "regex", "pattern": " (yes|no)"},
        max_tokens=8,
    )
    got = await answer(session, request)
    assert got.text in (" yes", " no")


@pytest.mark.soak
def test_exo_run_with_a_schema(spawn: Spawn, tmp_path: Path) -> None:
    out, err, code = run(spawn, tmp_path / "person.json", json.dumps(PERSON))
    assert code == 0, err
    check(out, PERSON)


@pytest.mark.soak
def test_exo_run_with_a_schema_that_cannot_be_followed(spawn: Spawn, tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    out, err, code = run(spawn, path, '{"type": "array", "uniqueItems": true}')
    assert (code, out) == (2, "")
    assert str(path) in err and "uniqueItems" in err and len(err.splitlines()) == 1, err


def run(spawn: Spawn, path: Path, schema: str) -> tuple[str, str, int]:
    path.write_text(schema)
    command = [*EXO, "run", "--max-tokens", "60", "--no-stdin", "--schema", str(path), "Describe a person."]
    process = spawn(*command, stdin=subprocess.DEVNULL)
    out, err = process.communicate()
    return out, err, process.returncode


# -------------------------------------------------------------------------------------------- all fifty


@pytest.fixture(scope="module")
def server(smollm2_home: Path) -> Iterator[Serving]:
    with Serving(smollm2_home, "-m", "smollm2", backend="mlx") as serving:
        yield serving


@pytest.mark.soak
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 9}], ids=["greedy", "drawn"])
def test_fifty_schemas_streamed_and_not_four_at_a_time(server: Serving, sampling: dict[str, Any]) -> None:
    def one(number: int) -> tuple[int, str, str]:
        schema, stream = SCHEMAS[number // 2], bool(number % 2)
        wanted = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
        body = CHAT.ask("Answer in JSON.", stream, response_format=wanted, max_tokens=200, **sampling)
        with server.client() as client:
            reply = client.post(CHAT.path, json=body, timeout=600)
        assert reply.status_code == 200, reply.text
        if stream:
            text, reason, ended, _ = CHAT.read_stream(reply.content)
            assert ended and reason
            return number, text, reason
        choice = reply.json()["choices"][0]
        return number, CHAT.text_of(reply.json()), choice["finish_reason"]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(2 * len(SCHEMAS))))
    said: dict[int, str] = {}
    for number, text, reason in found:
        schema = SCHEMAS[number // 2]
        if reason == "length" and schema.get("$defs", {}).get("node") == NODE:
            continue  # a list without a bound
        assert reason == "stop", (schema, text)
        check(text, schema)
        said[number] = text
    assert len(said) >= 2 * len(SCHEMAS) - 2
