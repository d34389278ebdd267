"""The one codec of events and requests: what goes in comes out, and readers ignore what they do not know."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import pytest
from exocli.types import (
    EVENT_TYPES,
    Event,
    Finished,
    Message,
    Part,
    Phase,
    Prepared,
    Progress,
    Reason,
    Receipt,
    Request,
    Sampling,
    Started,
    Status,
    ToolUse,
    Usage,
    event_from_json,
    new_id,
    prepared_from_json,
    request_from_json,
    to_json,
)
from hypothesis import given
from hypothesis import strategies as st

counts = st.integers(0, 10**12)
floats = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(max_size=20)
plain = st.dictionaries(words, st.none() | st.booleans() | counts | words, max_size=3)
without_none = st.dictionaries(words, st.booleans() | counts | words, max_size=3)
receipts = st.builds(
    Receipt,
    phase=st.sampled_from(get_args(Phase)),
    kept_tokens=st.none() | counts,
    ranks=st.none() | counts,
    latency_ms=floats,
)
ends = st.builds(
    Finished,
    id=words,
    reason=st.sampled_from(get_args(Reason)),
    usage=st.builds(Usage, prompt_tokens=counts, cached_tokens=counts),
    cancel=st.none() | receipts,
    error=st.none() | without_none,
    type=st.just("finished"),
)
statuses = st.builds(Status, id=words, phase=st.sampled_from(["queued", "loading"]), type=st.just("status"))


def events(cls: type[Any]) -> st.SearchStrategy[Any]:
    if cls is Finished:
        return ends
    if cls is Status:
        return statuses
    values = {f.name: words if f.type == "str" else counts for f in fields(cls)}
    values |= {"type": st.just(cls.__dataclass_fields__["type"].default)}
    if "logprobs" in values:
        values["logprobs"] = st.none() | st.lists(without_none, max_size=2)
    if "vector" in values:
        values["vector"] = st.lists(floats, max_size=3).map(tuple)
    return st.builds(cls, **values)


@pytest.mark.parametrize("cls", EVENT_TYPES.values())
@given(data=st.data())
def test_an_event_survives(cls: type[Any], data: st.DataObject) -> None:
    event: Event = data.draw(events(cls))
    line = json.loads(json.dumps(to_json(event)))
    assert event_from_json(line) == event
    assert next(iter(line)) == "type" and EVENT_TYPES[line["type"]] is cls


def test_the_lines_are_the_contracts() -> None:
    assert to_json(Started(id="i", model="m", backend="b")) == {
        "type": "started", "id": "i", "model": "m", "backend": "b", "v": 1,
    }  # fmt: skip
    assert to_json(Status(id="i", phase="queued", position=2)) == {
        "type": "status", "id": "i", "phase": "queued", "position": 2,
    }  # fmt: skip
    assert to_json(Progress(id="i", processed=128, total=636)) == {
        "type": "progress", "id": "i", "processed": 128, "total": 636, "cached": 0,
    }  # fmt: skip
    receipt = Receipt(phase="prefill", kept_tokens=None, ranks=None)
    line = to_json(Finished(id="i", reason="cancelled", cancel=receipt))
    assert "error" not in line and "stop" not in line
    assert line["cancel"] == {
        "phase": "prefill", "processed": 0, "total": 0, "kept_tokens": None, "ranks": None,
        "latency_ms": 0.0, "confirmed": True, "killed": False,
    }  # fmt: skip
    assert set(line["usage"]) == {"prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"}
    assert set(line["timing"]) == {"ttft_s", "prefill_tps", "decode_tps", "total_s"}


def test_a_reader_ignores_what_it_does_not_know() -> None:
    assert event_from_json({"type": "of the future", "id": "i"}) is None
    assert event_from_json({"id": "i"}) is None
    line = to_json(Finished(id="i", reason="stop", cancel=Receipt(phase="decode")))
    for part in (line, line["usage"], line["timing"], line["cancel"]):
        part["of_the_future"] = 1
    assert event_from_json(line) == Finished(id="i", reason="stop", cancel=Receipt(phase="decode"))


parts = st.builds(Part, kind=st.sampled_from(["text", "image", "file"]), text=words, path=st.none() | words)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    content=st.none() | words | st.lists(parts, min_size=1, max_size=2).map(tuple),
    tool_calls=st.lists(st.builds(ToolUse, id=words, name=words, arguments=words), max_size=2).map(tuple),
    tool_call_id=st.none() | words,
    reasoning=st.none() | words,
)
requests = st.builds(
    Request,
    id=words,
    messages=st.lists(messages, max_size=3).map(tuple),
    prompt=st.none() | words,
    sampling=st.builds(
        Sampling,
        temperature=st.none() | floats,
        seed=st.none() | counts,
        logit_bias=st.none() | st.dictionaries(counts, floats, min_size=1, max_size=2),
    ),
    max_tokens=st.none() | counts,
    stop=st.lists(words, max_size=2).map(tuple),
    tools=st.lists(without_none, max_size=2).map(tuple),
    format=st.none() | without_none,
    logprobs=st.none() | counts,
    reasoning=st.none() | st.booleans() | words,
    template_kwargs=without_none,
    options=without_none,
)


@given(requests)
def test_a_request_survives(request: Request) -> None:
    assert request_from_json(json.loads(json.dumps(to_json(request)))) == request


@given(st.lists(counts, max_size=20).map(tuple), without_none, st.none() | without_none)
def test_what_was_prepared_survives(tokens: Any, settings: Any, reuse: Any) -> None:
    prepared = Prepared(
        id="i", prompt_tokens=len(tokens), max_tokens=8, tokens=tokens, settings=settings, reuse=reuse
    )
    assert prepared_from_json(json.loads(json.dumps(to_json(prepared)))) == prepared


@given(plain)
def test_none_within_plain_data_is_kept(data: dict[str, Any]) -> None:
    """Only a dataclass's absent fields are left out: a JSON schema may say null."""
    assert to_json(data) == data


def test_all_of_it_is_frozen_and_ids_are_new() -> None:
    for cls in (Request, Message, Part, Sampling, Prepared, Usage, Receipt, *EVENT_TYPES.values()):
        assert is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert len({new_id() for _ in range(100)}) == 100 and len(new_id()) == 24
