"""Requests → bodies, OpenAI's and Ollama's."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from exocli import BadRequest, Message, Part, Request, Sampling, ToolUse

from exo_remote import messages, ollama
from exo_remote.dialects import DIALECTS

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
FULL = Request(
    messages=(
        Message(role="developer", content="be kind"),
        Message(role="user", content="hi", name="ann"),
        Message(
            role="assistant", content=None, tool_calls=(ToolUse(id="c", name="f", arguments='{"a": 1}'),)
        ),
        Message(role="tool", content="2", tool_call_id="c"),
        Message(role="assistant", content="so", reasoning="hm"),
    ),
    sampling=Sampling(
        temperature=0.0,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        seed=7,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        logit_bias={5: -1.0},
    ),
    max_tokens=9,
    stop=("x",),
    tools=(TOOL,),
    tool_choice="auto",
    format={"type": "json_schema", "schema": {"type": "object"}, "strict": True},
    logprobs=2,
    reasoning="low",
    template_kwargs={"k": 1},
    continue_last=True,
)


def body(request: Request, name: str) -> dict[str, Any]:
    return messages.body(request, DIALECTS[name], "m", "up-1")


def test_everything_for_vllm():
    data = body(FULL, "vllm")
    assert [m["role"] for m in data["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert data["messages"][2] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    assert data["messages"][3]["tool_call_id"] == "c" and data["messages"][1]["name"] == "ann"
    assert data["messages"][4]["reasoning_content"] == "hm"
    assert data["response_format"]["json_schema"] == {
        "name": "reply",
        "schema": {"type": "object"},
        "strict": True,
    }
    expected = {
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 7,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"5": -1.0},
        "max_tokens": 9,
        "stop": ["x"],
        "tools": [TOOL],
        "tool_choice": "auto",
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"k": 1},
        "continue_final_message": True,
        "add_generation_prompt": False,
        "stream_options": {"include_usage": True},
    }
    assert {key: data[key] for key in expected} == expected and "return_progress" not in data


def test_what_differs():
    exo, llama, mlx = body(FULL, "exo"), body(FULL, "llama.cpp"), body(FULL, "mlx-lm")
    assert exo["messages"][0]["role"] == "developer" and exo["return_progress"] is True
    assert "add_generation_prompt" not in exo
    assert llama["repeat_penalty"] == 1.1 and "continue_final_message" not in llama
    assert "reasoning_content" not in mlx["messages"][4]
    assert body(FULL, "sglang")["rid"] == "up-1"
    plain = Request(messages=(Message(role="user", content="x"),), reasoning=False)
    assert body(plain, "openai")["chat_template_kwargs"] == {"enable_thinking": False}
    assert body(plain, "mlx-lm")["max_tokens"] > 100_000, "its default cuts replies after 512"
    assert "max_tokens" not in body(plain, "openai")


def test_a_text_to_complete():
    request = Request(task="complete", prompt="Once", logprobs=3)
    data = body(request, "openai")
    assert data["prompt"] == "Once" and data["logprobs"] == 3 and "messages" not in data
    assert messages.route(request) == "/completions" and ollama.route(request) == "/api/generate"
    assert ollama.body(request, "m")["raw"] is True


def test_images(tmp_path: Path):
    path = tmp_path / "i.png"
    path.write_bytes(b"png")
    encoded = base64.b64encode(b"png").decode()
    image = Part(kind="image", path=str(path), media_type="image/png")
    request = Request(messages=(Message(role="user", content=(Part(text="look"), image)),))
    assert body(request, "openai")["messages"][0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}},
    ]
    sent = ollama.body(request, "m")["messages"][0]
    assert sent["content"] == "look" and sent["images"] == [encoded]
    path.unlink()
    with pytest.raises(BadRequest, match="cannot be read"):
        body(request, "openai")
    with pytest.raises(BadRequest, match="text and images"):
        body(Request(messages=(Message(role="user", content=(Part(kind="file", path="x"),)),)), "openai")


def test_everything_for_ollama():
    data = ollama.body(FULL, "m")
    assert data["options"] == {
        "num_predict": 9,
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 7,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "stop": ["x"],
    }
    assert data["format"] == {"type": "object"} and data["think"] == "low" and data["top_logprobs"] == 2
    assert data["tools"] == [TOOL]
    assert data["messages"][2]["tool_calls"] == [{"function": {"name": "f", "arguments": {"a": 1}}}]
    assert data["messages"][4]["thinking"] == "hm"
    assert ollama.body(Request(format={"type": "json_object"}), "m")["format"] == "json"
