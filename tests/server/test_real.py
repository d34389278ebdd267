"""The default model behind HTTP: cancels within a chunk, resends that resume, streams that do not disturb."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.apis import ANTHROPIC, CHAT
from tests.server.serving import Serving

pytestmark = pytest.mark.real
LONG = " ".join(f"Item {n} costs {n * 37 % 101} coins." for n in range(90))  # about 900 tokens
CHUNK = 256
"""More than a chunk comes to on any machine that runs the tests."""
SHORT = {
    "messages": [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ],
    "continue_final_message": True,
    "max_tokens": 1,
}
"""One token answers it."""


@pytest.fixture(scope="module")
def server(smollm2_home: Path) -> Iterator[Serving]:
    with Serving(smollm2_home, "-m", "smollm2", backend="mlx") as serving:
        assert "Paris" in ask(serving, SHORT)
        yield serving


def ask(server: Serving, body: dict[str, Any], **more: Any) -> str:
    answer = server.post(CHAT.path, body, **more)
    assert answer.status_code == 200, answer.text
    return CHAT.text_of(answer.json())


def wait_share(server: Serving, name: str, share: float) -> int:
    """Until that much of this request's prompt is done; → how many tokens."""
    rows = server.wait_requests(
        lambda rows: any(r["id"] == name and r["processed"] > share * r["total"] > 0 for r in rows), 60
    )
    return next(row["processed"] for row in rows if row["id"] == name)


@pytest.mark.parametrize(("seed", "stream"), [(None, True), (7, False)])
def test_a_client_that_leaves_in_a_long_prefill_frees_the_engine_within_a_chunk(
    server: Serving, seed: int | None, stream: bool
):
    name = f"real-{seed}"
    connection = server.open(
        CHAT.path, {**CHAT.ask(f"{name} {LONG}", stream), "seed": seed}, {"X-Request-Id": name}
    )
    seen = wait_share(server, name, 0.1)
    connection.close()
    assert "Paris" in ask(server, SHORT)
    line = server.wait_log(f"id={name}")
    assert "outcome=cancelled" in line
    assert "phase=prefill" in line
    found = re.search(r"processed=(\d+)", line)
    assert found
    assert int(found[1]) - seen <= 2 * CHUNK


def test_ollamas_list_tells_the_models_size(server: Serving):
    (row,) = server.get("/api/tags").json()["models"]
    assert row["size"] > 100e6


def test_a_client_that_leaves_a_long_reply(server: Serving):
    body = {**CHAT.ask("Count from 1 to 2000.", True), "max_tokens": 2000}
    connection = server.open(CHAT.path, body, {"X-Request-Id": "real-reply"})
    server.wait_requests(lambda rows: any(r["id"] == "real-reply" and r["tokens"] >= 3 for r in rows), 60)
    connection.close()
    line = server.wait_log("id=real-reply")
    assert "outcome=cancelled" in line
    assert "phase=decode" in line


@pytest.mark.soak  # tests/real does the same without HTTP
def test_a_cancelled_prompt_resumes_and_finishes_with_the_same_words(server: Serving):
    question = f"{LONG} What does item 3 cost?"
    body = {**CHAT.ask(question, False), "max_tokens": 4, "temperature": 0}
    asking = threading.Thread(
        target=server.post, args=(CHAT.path, body), kwargs={"headers": {"X-Request-Id": "again"}}
    )
    asking.start()
    wait_share(server, "again", 0.5)
    receipt = server.post("/v1/requests/again/cancel").json()
    asking.join(10)
    assert receipt["kept_tokens"] > 0.4 * receipt["total"]
    resumed = server.post(CHAT.path, body).json()
    assert resumed["usage"]["prompt_tokens_details"]["cached_tokens"] >= receipt["kept_tokens"] - 1
    with_its_own = server.post(ANTHROPIC.path, {**ANTHROPIC.ask(question, False), "max_tokens": 4}).json()
    assert ANTHROPIC.text_of(with_its_own) == CHAT.text_of(resumed)


def test_two_conversations_with_one_system_prompt_do_not_mix(server: Serving):
    def body(last: str) -> dict[str, Any]:
        system = {"role": "system", "content": "You answer with one short sentence."}
        return {"messages": [system, {"role": "user", "content": last}], "max_tokens": 4, "temperature": 0}

    questions = ("Name a colour.", "Name an animal.")
    alone = [ask(server, body(question)) for question in questions]
    together: list[str] = ["", ""]

    def one(index: int) -> None:
        together[index] = ask(server, body(questions[index]))

    threads = [threading.Thread(target=one, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
