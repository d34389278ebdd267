"""Each client as it comes from its registry: models, chat, stream, its own way to stop, its own errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.clients.conftest import HERE, run
from tests.server.serving import Serving

SCRIPT = json.dumps([["reasoning", "hm"], ["text", "so "], ["text", "it is"]])


def python_client(name: str, python: Path, tmp_path: Path, *servers: Serving) -> dict[str, Any]:
    return run(
        [str(python), "-P", str(HERE / "scripts" / f"{name}.py"), *(server.url for server in servers)],
        tmp_path,
        PYTHONPATH=str(HERE / "scripts"),
    )


def stopped(*times: float | None) -> bool:
    return all(seconds is not None and seconds < 1 for seconds in times)


def test_openai(python: Path, server: Serving, embedder: Serving, tmp_path: Path):
    found = python_client("openai_client", python, tmp_path, server, embedder)
    assert found["models"] == ["scripted"]
    assert found["chat"] == found["stream"] == found["response"] == found["response_stream"] == "so it is"
    assert (found["reasoning"], found["completion"]) == ("hm", "a b")
    assert found["usage"] == len(SCRIPT.split()) + 3
    assert found["response_status"] == "completed"
    assert found["tool"] == ["tool_calls", '{"at": "sky"}']
    assert stopped(*found["left"])
    assert found["errors"]["missing"] == ["NotFoundError", 404, "model_not_found", "model"]
    assert found["errors"]["bad"] == ["BadRequestError", 400, "bad_request", "n"]
    assert found["errors"]["mid-stream"][0] == "APIError"
    assert "the word was raise" in found["errors"]["mid-stream"][1]
    vectors = found["embeddings"]
    for way in ("base64", "float"):
        assert near(vectors[way], embeddings(embedder)), way
    assert vectors["usage"] == 3
    assert vectors["refused"]["missing"] == ["NotFoundError", 404, "model_not_found", "model"]
    assert vectors["refused"]["bad"] == ["BadRequestError", 400, "bad_request", "dimensions"]
    assert vectors["refused"]["long"] == ["BadRequestError", 400, "context_length_exceeded", "input"]


def embeddings(embedder: Serving) -> list[list[float]]:
    """Of the scripts' two texts, as the route gives them."""
    texts = ["A man is eating food.", "Someone has a meal."]
    return [row["embedding"] for row in embedder.post("/v1/embeddings", {"input": texts}).json()["data"]]


def near(ours: list[list[float]], theirs: list[list[float]]) -> bool:
    assert [len(vector) for vector in ours] == [len(vector) for vector in theirs] == [384, 384]
    pairs = zip(ours, theirs, strict=True)
    return all(abs(a - b) < 1e-5 for one, other in pairs for a, b in zip(one, other, strict=True))


def test_anthropic(python: Path, server: Serving, tmp_path: Path):
    found = python_client("anthropic_client", python, tmp_path, server)
    assert found["models"] == ["scripted"]
    assert found["chat"] == ["thinking", "text"]
    assert found["text"] == found["stream"] == "so it is"
    assert found["input_tokens"] == found["count"] == len(SCRIPT.split())
    assert found["stop"] == "end_turn"
    assert found["tool"] == ["tool_use", {"at": "sky"}]
    assert stopped(found["left"])
    assert found["errors"]["missing"] == ["NotFoundError", 404]
    assert found["errors"]["bad"] == ["BadRequestError", 400]
    assert found["errors"]["no model"] == "not_found_error"
    assert "the word was raise" in found["errors"]["mid-stream"][1]


def test_ollama(python: Path, server: Serving, embedder: Serving, tmp_path: Path):
    found = python_client("ollama_client", python, tmp_path, server, embedder)
    assert found["models"] == found["loaded"] == ["scripted:latest"]
    assert found["chat"] == found["stream"] == "so it is"
    assert (found["thinking"], found["generate"], found["tool"]) == ("hm", "a b", {"at": "sky"})
    assert stopped(found["left"])
    assert found["errors"]["missing"][0] == 404
    assert found["errors"]["embed"][0] == 501
    assert "the word was raise" in found["errors"]["mid-stream"][1]
    assert "tools" in found["shown"]
    assert near(found["embeddings"], embeddings(embedder))
    assert near([found["embedding"], found["embeddings"][1]], found["embeddings"])


def test_litellm(python: Path, server: Serving, embedder: Serving, tmp_path: Path):
    found = python_client("litellm_client", python, tmp_path, server, embedder)
    for way in ("openai", "anthropic", "ollama"):
        assert found[way]["chat"] == found[way]["stream"] == "so it is", way
    assert stopped(found["openai"]["left"])
    assert found["missing"] == "NotFoundError"
    assert found["too long"] == "ContextWindowExceededError"
    assert found["embeddings"] == [384, 384]


def test_langchain(python: Path, server: Serving, embedder: Serving, tmp_path: Path):
    found = python_client("langchain_client", python, tmp_path, server, embedder)
    assert found["chat"] == found["stream"] == "so it is"
    assert found["tokens"] == len(SCRIPT.split()) + 3
    assert stopped(found["left"])
    assert found["missing"] == "model_not_found"
    assert found["too_long"] == "context_length_exceeded"
    assert (found["documents"], found["query"]) == ([384, 384], 384)


def test_llm(python: Path, server: Serving, tmp_path: Path):
    """simonw's llm, by its command line; Ctrl-C is its own way to stop."""
    models = [
        {"model_id": "here", "model_name": "scripted", "api_base": f"{server.url}/v1", "api_key_name": "here"}
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LLM_USER_PATH": str(tmp_path), "NO_PROXY": "*"}
    llm = str(python.parent / "llm")
    flags = ["-m", "here", "--key", "none"]
    # Two questions to one process, the second is refused.
    talk = subprocess.run(
        [llm, "chat", *flags, "--no-stream"],
        env=env,
        input=f"{SCRIPT}\nrefuse\n",
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert "so it is" in talk.stdout
    assert talk.returncode != 0 and "This word is refused." in talk.stderr
    with subprocess.Popen(
        [llm, *flags, "--no-log", "forever"],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(14) == b"foreverforever"  # as it comes
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    server.wait_idle(2)


def test_openai_for_node(node_folder: Path, server: Serving):
    found = run(["node", "openai_client.mjs", server.url], node_folder, PATH=os.environ["PATH"])
    assert found["models"] == ["scripted"]
    assert found["chat"] == found["stream"] == found["response"] == "so it is"
    assert stopped(*found["left"])
    assert found["aborted"] == "APIUserAbortError"
    assert found["missing"] == ["NotFoundError", 404, "model_not_found"]
