"""Embeddings over HTTP, by the real model: OpenAI's route, Ollama's two, refusals, who serves what."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Serving, chat

TEXTS = ["A man is eating food.", "Someone has a meal.", "The stock market fell on Tuesday."]
LONG = "word " * 400
ROUTES = ("/v1/embeddings", "/api/embed", "/api/embeddings")


@pytest.fixture(scope="module")
def server(minilm_home: Path) -> Iterator[Serving]:
    """The embedding model, loaded."""
    with Serving(minilm_home, "-m", "minilm", backend="mlx") as serving:
        assert ask(serving, "/v1/embeddings", input="wake up")["object"] == "list"
        yield serving


@pytest.fixture(scope="module")
def both(minilm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A model that chats, then one that embeds, from a config."""
    home = tmp_path_factory.mktemp("both")
    config = f'[models.vectors]\nmodel = "{minilm_home / "models" / "minilm"}"\nbackend = "mlx"\n'
    (home / "config.toml").write_text(config, encoding="utf-8")
    with Serving(home) as serving:
        yield serving


def ask(server: Serving, path: str, **body: Any) -> Any:
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def floats(server: Serving, **body: Any) -> list[list[float]]:
    rows = ask(server, "/v1/embeddings", **body)["data"]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return [row["embedding"] for row in rows]


def close(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-5


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_openai_shape(server: Serving) -> None:
    body = ask(server, "/v1/embeddings", input=TEXTS, model="minilm", user="me", unknown=1)
    assert (body["object"], body["model"]) == ("list", "minilm")
    assert {row["object"] for row in body["data"]} == {"embedding"}
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 15
    vectors = [row["embedding"] for row in body["data"]]
    assert all(len(vector) == 384 and abs(dot(vector, vector) - 1) < 1e-4 for vector in vectors)
    assert dot(vectors[0], vectors[1]) > 0.6 > 0.2 > dot(vectors[0], vectors[2])
    (alone,) = floats(server, input=TEXTS[0])
    assert close(alone, vectors[0])


def test_base64_is_little_endian_float32(server: Serving) -> None:
    (row,) = ask(server, "/v1/embeddings", input=TEXTS[0], encoding_format="base64")["data"]
    found = list(struct.unpack("<384f", base64.b64decode(row["embedding"])))
    assert close(found, floats(server, input=TEXTS[0], encoding_format="float")[0])


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "input", "required"),
        ({"input": []}, "input", "no text"),
        ({"input": 5}, "input", "input"),
        ({"input": ["a", None]}, "input", "input"),
        ({"input": [1, 2]}, "input", "token ids"),
        ({"input": [[1, 2], [3]]}, "input", "check_embedding_ctx_length=False"),
        ({"input": "a", "dimensions": 100}, "dimensions", "384"),
        ({"input": "a", "dimensions": 0}, "dimensions", "greater than"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "float"),
        ({"input": ["a", LONG]}, "input", "Text 2 of 2 has 402 tokens; minilm takes 256"),
        ({"input": "\ud800"}, None, "JSON"),
    ],
)
def test_what_is_wrong_is_a_400_that_names_the_field(
    server: Serving, body: dict[str, Any], field: str | None, words: str
) -> None:
    headers = {"Content-Type": "application/json"}
    with server.client() as client:
        answer = client.post("/v1/embeddings", content=json.dumps(body), headers=headers)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", field)
    assert words in error["message"] and answer.headers["x-should-retry"] == "false"


def test_a_text_that_is_too_long_says_so_with_both_counts(server: Serving) -> None:
    error = server.post("/v1/embeddings", {"input": LONG}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert (error["details"]["prompt_tokens"], error["details"]["context"]) == (402, 256)
    cut = floats(server, input=LONG, truncate=True)
    assert close(cut[0], ask(server, "/api/embed", input=LONG)["embeddings"][0])


def test_ollamas_routes(server: Serving) -> None:
    body = ask(
        server, "/api/embed", model="minilm:latest", input=TEXTS, options={"num_ctx": 9}, keep_alive="5m"
    )
    assert body["model"] == "minilm:latest" and body["prompt_eval_count"] > 15
    assert body["total_duration"] > 0 and body["load_duration"] >= 0
    expected = floats(server, input=TEXTS)
    assert all(map(close, body["embeddings"], expected))
    assert close(ask(server, "/api/embed", input=TEXTS[0])["embeddings"][0], expected[0])
    assert close(ask(server, "/api/embeddings", model="minilm", prompt=TEXTS[0])["embedding"], expected[0])
    assert len(ask(server, "/api/embed", input=["a", ""])["embeddings"]) == 2
    refused = server.post("/api/embed", {"input": LONG, "truncate": False})
    assert refused.status_code == 400 and "402 tokens" in refused.json()["error"]
    assert server.post("/api/embed", {"input": 5}).status_code == 400
    assert server.post("/api/embed", {"input": "a", "dimensions": 7}).status_code == 400
    assert server.post("/api/show", {"model": "minilm"}).json()["capabilities"] == ["embedding"]


def test_without_a_text_ollamas_routes_load_and_unload(server: Serving) -> None:
    assert ask(server, "/api/embeddings", model="minilm", prompt="", keep_alive=0) == {"embedding": []}
    assert server.get("/api/ps").json()["models"] == []
    assert ask(server, "/api/embed", model="minilm") == {"model": "minilm", "embeddings": []}
    assert [m["name"] for m in server.get("/api/ps").json()["models"]] == ["minilm:latest"]
    assert ask(server, "/api/generate", model="minilm", keep_alive=0)["done_reason"] == "unload"


def test_a_request_is_seen_cancelled_and_counted_as_any_other(server: Serving) -> None:
    many = [f"sentence number {n} of a great many" for n in range(4000)]
    server.open("/v1/embeddings", {"input": many}, {"X-Request-Id": "left"}).close()
    with server.open("/v1/embeddings", {"input": many}, {"X-Request-Id": "by-id"}) as connection:
        rows = server.wait_requests(
            lambda rows: any(r["id"] == "by-id" and 0 < r["processed"] < r["total"] for r in rows), 30
        )
        assert rows[-1]["api"] == "openai.embeddings" and rows[-1]["phase"] == "prefill"
        receipt = server.post("/v1/requests/by-id/cancel").json()
        assert receipt["state"] == "cancelled" and 0 < receipt["processed"] < receipt["total"]
        assert connection.recv(65536).startswith(b"HTTP/1.1 499"), "half of the vectors are no answer"
    server.wait_idle()
    line = server.wait_log("id=left ")
    assert "outcome=cancelled" in line and "api=openai.embeddings" in line
    metrics = server.get("/metrics").text
    assert 'exo_requests_total{api="openai.embeddings",model="minilm",outcome="cancelled"} 2.0' in metrics
    assert floats(server, input="after")


def test_an_embedding_model_does_not_chat(server: Serving) -> None:
    for path, body in (
        ("/v1/chat/completions", chat("hi")),
        ("/v1/messages", {**chat("hi"), "max_tokens": 5}),
    ):
        for stream in (False, True):
            answer = server.post(path, {**body, "stream": stream})
            assert answer.status_code == 400
            assert "minilm cannot chat: no model here can" in answer.json()["error"]["message"]
    assert "complete a text" in server.post("/v1/completions", {"prompt": "a"}).json()["error"]["message"]
    assert server.get("/v1/models/minilm").json()["tasks"] == ["embed"]


def test_the_model_that_can_is_named_and_taken_where_none_is(both: Serving) -> None:
    assert [row["id"] for row in both.get("/v1/models").json()["data"]] == ["scripted", "vectors"]
    for path in ROUTES:
        answer = both.post(path, {"model": "scripted", "input": "a", "prompt": "a"})
        assert answer.status_code == 400 and answer.headers["x-should-retry"] == "false"
        said = answer.json()["error"]
        said = said if path.startswith("/api") else said["message"]
        assert said == "scripted cannot make embeddings: of this server's models, vectors can."
    refused = both.post("/v1/chat/completions", {**chat("hi"), "model": "vectors"}).json()["error"]
    assert refused["message"] == "vectors cannot chat: of this server's models, scripted can."
    counted = both.post("/v1/messages/count_tokens", {**chat("hi"), "model": "vectors"}).json()["error"]
    assert (counted["message"], counted["details"]["field"]) == (refused["message"], "model")
    assert both.post("/v1/chat/completions", chat("hi there")).json()["model"] == "scripted"
    assert ask(both, "/v1/embeddings", input="a")["model"] == "vectors"
