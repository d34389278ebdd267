"""What a request asks for against what the capabilities name: refused by field, before any engine sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from exocli import BadRequest, Capabilities, Message, Part, Request, Sampling, Unsupported
from exocli.supported import check_supported

HELLO = Request(model="m", messages=(Message(role="user", content="Hello"),))
NOTHING = Capabilities()
EVERYTHING = Capabilities(
    tasks=("chat", "complete", "embed"),
    inputs=("text", "image"),
    tools=True,
    schema=True,
    logprobs=True,
    seed=True,
    penalties=True,
    continue_last=True,
)
PICTURE = Message(role="user", content=(Part(text="What is this?"), Part(kind="image", path="/x.png")))


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        ({"tools": ({"type": "function"},)}, "tools", "tools"),
        ({"format": {"type": "json_object"}}, "format", "structured output"),
        ({"logprobs": 0}, "logprobs", "logprobs"),
        ({"continue_last": True}, "continue_last", "continuing a reply"),
        ({"sampling": Sampling(seed=1)}, "seed", "a seed"),
        ({"sampling": Sampling(repetition_penalty=1.1)}, "repetition_penalty", "repetition penalty"),
        ({"sampling": Sampling(logit_bias={3: -1.0})}, "logit_bias", "logit bias"),
        ({"messages": (PICTURE,)}, "messages", "image input"),
    ],
)
def test_what_is_not_named_is_refused_by_field(asked: dict[str, Any], field: str, words: str) -> None:
    request = replace(HELLO, **asked)
    with pytest.raises(Unsupported) as refused:
        check_supported(request, NOTHING, "b")
    assert refused.value.message == f"The backend b does not offer {words}."
    assert refused.value.details["field"] == field
    with pytest.raises(Unsupported, match=r"^m on b does not offer"):
        check_supported(request, NOTHING, "b", "m")
    check_supported(request, EVERYTHING, "b")


def test_penalties_that_do_nothing_ask_for_nothing() -> None:
    neutral = Sampling(repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias={})
    check_supported(replace(HELLO, sampling=neutral), NOTHING, "b")


def test_another_task_says_what_the_model_is_for() -> None:
    with pytest.raises(
        Unsupported, match=r"^m cannot make embeddings, only chat and complete a text\.$"
    ) as no:
        check_supported(Request(task="embed", model="m", inputs=("x",)), NOTHING, "b")
    assert no.value.details == {"field": "task", "tasks": ["chat", "complete"]}


@pytest.mark.parametrize(
    ("request_", "field"), [(Request(), "messages"), (Request(task="embed"), "input")], ids=["chat", "embed"]
)
def test_nothing_to_do_is_a_bad_request(request_: Request, field: str) -> None:
    with pytest.raises(BadRequest) as empty:
        check_supported(request_, EVERYTHING, "b")
    assert empty.value.details["field"] == field
