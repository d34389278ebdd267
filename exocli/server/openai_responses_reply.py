"""OpenAI's Responses: events → its typed stream and its response object.

Shapes: the OpenAI API reference, "Responses" and "Streaming events". Every event has a sequence number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exocli.errors import ExoError
from exocli.server.openai_chat import logprob_content
from exocli.server.problems import body_of
from exocli.server.requests import Running
from exocli.server.streaming import Call, Collected, Reply, sse
from exocli.types import Event, Finished, Progress, Reasoning, Started, Text, ToolCall, Usage

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def usage(of: Usage) -> dict[str, Any]:
    return {
        "input_tokens": of.prompt_tokens,
        "input_tokens_details": {"cached_tokens": of.cached_tokens},
        "output_tokens": of.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": of.reasoning_tokens},
        "total_tokens": of.prompt_tokens + of.completion_tokens,
    }


def envelope(running: Running, model: str, status: str) -> dict[str, Any]:
    """A response object without output."""
    request = running.request
    return {
        "id": f"resp_{running.id}",
        "object": "response",
        "created_at": running.created,
        "status": status,
        "model": model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "max_output_tokens": request.max_tokens,
        "tool_choice": "auto",
        "tools": [],
        "previous_response_id": None,
        "store": False,
        "usage": None,
    }


class ResponsesReply(Reply):
    """Items open one after the other: reasoning, a message, calls; a change of kind closes the one before."""

    def __init__(self, call: Call, running: Running) -> None:
        super().__init__(call, running)
        self._number = -1
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None

    def on(self, event: Event) -> Iterator[bytes]:
        match event:
            case Started():
                for kind in ("created", "in_progress"):
                    yield self._event(f"response.{kind}", response=self._response("in_progress"))
            case Text(text=text, logprobs=logprobs):
                yield from self._message()
                known = logprob_content(logprobs or ())
                part = self._part()
                part["text"] += text
                part["logprobs"] += known
                yield self._on_part("response.output_text.delta", delta=text, logprobs=known)
            case Reasoning(text=text):
                yield from self._thought()
                self._part()["text"] += text
                yield self._on_part("response.reasoning_text.delta", delta=text)
            case ToolCall():
                yield from self._call(event)
            case Finished():
                yield from self._close(
                    "incomplete" if event.reason in ("length", "cancelled") else "completed"
                )
                status = _status(event)
                ended = self._response(status, event)
                kind = "completed" if status == "completed" else "incomplete"
                yield self._event(f"response.{kind}", response=ended)

    def progress(self, event: Progress) -> Iterator[bytes]:
        response = self._response("in_progress")
        progress = self.prompt_progress(event)
        yield self._event("response.in_progress", response=response, prompt_progress=progress)

    def failed(self, error: ExoError) -> Iterator[bytes]:
        yield from self._close("incomplete")
        inner = body_of(error, "openai")["error"]
        response = self._response("failed")
        response["error"] = {"code": inner["code"], "message": inner["message"]}
        yield self._event("response.failed", response=response)

    # ------------------------------------------------------------------------------------- items

    def _message(self) -> Iterator[bytes]:
        if self._open is None or self._open["type"] != "message":
            yield from self._close()
            yield from self._begin(
                {"type": "message", "id": self._id("msg"), "role": "assistant", "content": []}
            )
            yield from self._begin_part(
                {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            )

    def _thought(self) -> Iterator[bytes]:
        if self._open is None or self._open["type"] != "reasoning":
            yield from self._close()
            yield from self._begin({"type": "reasoning", "id": self._id("rs"), "summary": [], "content": []})
            yield from self._begin_part({"type": "reasoning_text", "text": ""})

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        yield from self._close()
        item = {"type": "function_call", "id": self._id("fc"), "call_id": call.call_id, "name": call.name}
        yield from self._begin({**item, "arguments": ""})
        assert self._open is not None
        self._open["arguments"] = call.arguments
        place = {"item_id": self._open["id"], "output_index": len(self._items)}
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        yield self._event(
            "response.function_call_arguments.done", **place, arguments=call.arguments, name=call.name
        )
        yield from self._close()

    def _begin(self, item: dict[str, Any]) -> Iterator[bytes]:
        self._open = {**item, "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=len(self._items), item=self._open)

    def _begin_part(self, part: dict[str, Any]) -> Iterator[bytes]:
        assert self._open is not None
        self._open["content"].append(part)
        yield self._on_part("response.content_part.added", part=part)

    def _close(self, status: str = "completed") -> Iterator[bytes]:
        item, self._open = self._open, None
        if item is None:
            return
        for part in item.get("content", ()):
            place = {"item_id": item["id"], "output_index": len(self._items), "content_index": 0}
            if part["type"] == "output_text":
                more = {"text": part["text"], "logprobs": part["logprobs"]}
                yield self._event("response.output_text.done", **place, **more)
            else:
                yield self._event("response.reasoning_text.done", **place, text=part["text"])
            yield self._event("response.content_part.done", **place, part=part)
        item["status"] = status
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)

    def _part(self) -> dict[str, Any]:
        assert self._open is not None
        part: dict[str, Any] = self._open["content"][0]
        return part

    def _on_part(self, kind: str, **data: Any) -> bytes:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self._items), "content_index": 0}
        return self._event(kind, **place, **data)

    def _event(self, kind: str, **data: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number, **data}, kind)

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self.running.id}_{len(self._items)}"

    # ---------------------------------------------------------------------------------- the object

    def _response(self, status: str, finished: Finished | None = None) -> dict[str, Any]:
        body = {**envelope(self.running, self.model, status), **self.call.mirrored}
        body["output"] = list(self._items)
        body["tools"] = [{"type": "function", **tool["function"]} for tool in self.call.request.tools]
        if finished is not None:
            body["usage"] = usage(finished.usage)
            if finished.reason in INCOMPLETE:
                body["incomplete_details"] = {"reason": INCOMPLETE[finished.reason]}
            body |= self.receipt(finished)
        return body

    def whole(self, collected: Collected) -> dict[str, Any]:
        """The stream's own object: what both forms say cannot differ."""
        finished = collected.finished
        for event in collected.events:
            for _ in self.on(event):
                pass
        return self._response(_status(finished), finished)


def _status(finished: Finished) -> str:
    if finished.reason == "cancelled":
        return "cancelled"
    return "incomplete" if finished.reason in INCOMPLETE else "completed"
