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


def test_openai(python: Path, server: Serving, tmp_path: Path):
    found = python_client("openai_client", python, tmp_path, server)
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
    assert "the word was raise" in found["errors"]["mid-stream"][1]


def test_ollama(python: Path, server: Serving, tmp_path: Path):
    found = python_client("ollama_client", python, tmp_path, server)
    assert found["models"] == found["loaded"] == ["scripted:latest"]
    assert found["chat"] == found["stream"] == "so it is"
    assert (found["thinking"], found["generate"], found["tool"]) == ("hm", "a b", {"at": "sky"})
    assert stopped(found["left"])
    assert found["errors"]["missing"][0] == 404
    assert found["errors"]["embed"][0] == 501
    assert "the word was raise" in found["errors"]["mid-stream"][1]
    assert "tools" in found["shown"]


def test_litellm(python: Path, server: Serving, embedder: Serving, tmp_path: Path):
    found = python_client("litellm_client", python, tmp_path, server, embedder)
    for way in ("openai", "anthropic", "ollama"):
        assert found[way]["chat"] == found[way]["stream"] == "so it is", way
    assert stopped(found["openai"]["left"])
    assert found["missing"] == "NotFoundError"
    assert found["embeddings"] == [384, 384]


def test_langchain(python: Path, server: Serving, embedder: Serving, tmp_path: Path):
    found = python_client("langchain_client", python, tmp_path, server, embedder)
    assert found["chat"] == found["stream"] == "so it is"
    assert found["tokens"] == len(SCRIPT.split()) + 3
    assert stopped(found["left"])
    assert found["missing"] == "model_not_found"
    assert (found["documents"], found["query"]) == ([384, 384], 384)


def test_llm(python: Path, server: Serving, tmp_path: Path):
    """simonw's llm, by its command line; Ctrl-C is its own way to stop."""
    models = [
        {"model_id": "here", "model_name": "scripted", "api_base": f"{server.url}/v1", "api_key_name": "here"}
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LLM_USER_PATH": str(tmp_path), "NO_PROXY": "*"}
    llm = [str(python.parent / "llm"), "-m", "here", "--key", "none", "--no-log"]
    done = call([*llm, SCRIPT], env)
    assert (done.returncode, done.stdout.strip()) == (0, "so it is"), done.stderr
    command = [*llm, "forever"]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        server.wait_requests(lambda rows: any(r["tokens"] > 5 for r in rows), 30)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    server.wait_idle(2)
    refused = call([*llm, "--no-stream", "refuse"], env)
    assert refused.returncode != 0
    assert "This word is refused." in refused.stderr


def call(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, check=False
    )


def test_openai_for_node(node_folder: Path, server: Serving):
    found = run(["node", "openai_client.mjs", server.url], node_folder, PATH=os.environ["PATH"])
    assert found["models"] == ["scripted"]
    assert found["chat"] == found["stream"] == found["response"] == "so it is"
    assert stopped(*found["left"])
    assert found["aborted"] == "APIUserAbortError"
    assert found["missing"] == ["NotFoundError", 404, "model_not_found"]


def test_embeddings(python: Path, embedder: Serving, tmp_path: Path):
    """openai and ollama, with the real model."""
    found = python_client("embeddings_client", python, tmp_path, embedder)
    for way in ("openai", "openai_float", "ollama"):
        assert [len(vector) for vector in found[way]] == [384, 384], way
        assert near(found[way][0], found["openai"][0]) and near(found[way][1], found["openai"][1]), way
    assert near(found["ollama_old"], found["openai"][0])
    assert found["usage"] == 3
    assert found["errors"]["missing"] == ["NotFoundError", 404, "model_not_found", "model"]
    assert found["errors"]["bad"] == ["BadRequestError", 400, "bad_request", "dimensions"]
    assert found["errors"]["long"] == ["BadRequestError", 400, "context_length_exceeded", "input"]


def near(one: list[float], other: list[float]) -> bool:
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-5
