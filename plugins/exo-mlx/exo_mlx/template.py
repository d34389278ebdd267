"""From a chat's messages to the prompt's text, by the model's own template: tools, thinking, earlier turns.

Says whether the prompt ends inside a thought, for then the reply begins in one. Knows no token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exocli import BadRequest, Message, ModelBroken, Request

from exo_mlx import tools
from exo_mlx.deadline import TookTooLong, at_most

_PROBE = "exo_probe_tool"
LIMIT_S = 10.0
"""How long a template may take; the longest conversation takes a real one a fraction of a second."""


class Endless(Exception):
    """A template that comes to no end."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """`thinking`: the text ends inside a thought, with which the reply goes on."""

    text: str
    thinking: bool = False


class ChatTemplate:
    """`tokenizer` is mlx-lm's wrapper, `name` the model's, for messages."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer = tokenizer
        self._name = name

    def takes_tools(self) -> bool:
        """Does a tool that is offered reach the prompt? Asked of the template itself: it is a program. Raises
        ModelBroken if it comes to no end."""
        if not self._tokenizer.has_chat_template:
            return False
        function = {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
        kwargs = {"tools": [{"type": "function", "function": function}]}
        try:
            return _PROBE in self._apply([{"role": "user", "content": "?"}], kwargs, opening=True)
        except Endless as error:
            text = f"The chat template of {self._name} comes to no end ({error}): give another"
            raise ModelBroken(f"{text} with -o chat_template=FILE.") from None
        except Exception:  # it may raise anything, and then it does not take them
            return False

    def render(self, request: Request, opening: bool = True) -> Rendered:
        """`opening`: with what the template puts before a reply. Raises BadRequest, naming the field."""
        if not request.messages:
            raise BadRequest("There are no messages.", field="messages")
        if not self._tokenizer.has_chat_template:
            raise BadRequest(
                f"{self._name} has no chat template (it is a base model): it can complete a text, not chat."
            )
        last = request.messages[-1]
        if request.continue_last and last.role != "assistant":
            raise BadRequest("Only an assistant's message can be continued.", field="messages")
        kwargs = self._kwargs(request)
        silent = kwargs.get("enable_thinking") is False
        # What was cut while it thought has no answer that a template could continue: the thought goes on.
        cut = request.continue_last and not last.content and not last.tool_calls
        thought = last.reasoning if cut else None
        continuing = request.continue_last and thought is None
        messages = request.messages if thought is None else request.messages[:-1]
        text = self._apply_to(messages, kwargs, opening and not continuing, continuing)
        if continuing or not opening or not self._tokenizer.has_thinking:
            return Rendered(text)
        return self._opened(text, None if silent else thought, silent)

    def _opened(self, text: str, thought: str | None, silent: bool) -> Rendered:
        """`text` as the model is to go on with it: inside a thought, after one, or as the template left it.
        Some templates open a thought in the prompt, and some of these know no way not to."""
        start, end = self._tokenizer.think_start, self._tokenizer.think_end
        opened = text.rstrip().endswith(start)
        if thought:
            text = text if opened else f"{text}{start}\n"
            return Rendered(text + thought, thinking=True)
        if opened and silent:
            return Rendered(f"{text.rstrip()}\n\n{end}\n\n")
        return Rendered(text, thinking=opened)

    def _kwargs(self, request: Request) -> dict[str, Any]:
        """What the template is given beside the messages; the request's own template_kwargs win."""
        kwargs = dict(request.template_kwargs)
        if request.reasoning is not None:
            kwargs.setdefault("enable_thinking", request.reasoning not in (False, "none"))
        # Some templates know efforts; one that is a Python function refuses what it does not know.
        if isinstance(request.reasoning, str) and self._tokenizer.chat_template is not None:
            kwargs.setdefault("reasoning_effort", request.reasoning)
        if offered := tools.offered(request):
            kwargs["tools"] = offered
        return kwargs

    def _apply_to(
        self, messages: Sequence[Message], kwargs: Mapping[str, Any], opening: bool, continuing: bool
    ) -> str:
        plain = [_plain(i, message) for i, message in enumerate(messages)]
        try:
            return self._apply(plain, kwargs, opening, continuing)
        except Endless as error:
            text = f"The chat template of {self._name} comes to no end with these messages ({error})."
            raise BadRequest(text) from None
        except Exception as error:  # a template is the model's own program and may raise anything
            if any(message.tool_calls for message in messages):
                try:  # most want a call's arguments as an object, a few put the JSON text together
                    return self._apply(_with_texts(plain, messages), kwargs, opening, continuing)
                except Exception:
                    pass
            text = " ".join(str(error).split())
            raise BadRequest(f"The chat template of {self._name} refuses these messages: {text}") from error

    def _apply(
        self,
        messages: list[dict[str, Any]],
        kwargs: Mapping[str, Any],
        opening: bool,
        continuing: bool = False,
    ) -> str:
        try:
            with at_most(LIMIT_S):
                text: str = self._tokenizer.apply_chat_template(
                    messages,
                    tokenize=False,
                    add_generation_prompt=opening,
                    continue_final_message=continuing,
                    **kwargs,
                )
        except TookTooLong:
            raise Endless(f"it was not done after {LIMIT_S:g} s") from None
        return text


def _plain(index: int, message: Message) -> dict[str, Any]:
    """The dict a chat template sees; text parts joined, absent keys left out."""
    where = f"messages[{index}]"
    content = message.content
    if isinstance(content, tuple):
        if any(part.kind != "text" for part in content):
            raise BadRequest(f"{where} has a part that is not text.", field=where)
        content = "".join(part.text for part in content)
    if content is None and not (message.role == "assistant" and (message.tool_calls or message.reasoning)):
        raise BadRequest(f"{where} ({message.role}) has no content.", field=where)
    # Few templates know OpenAI's "developer"; it is a system message.
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    plain["content"] = content or ""
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _object(c.arguments)}}
            for c in message.tool_calls
        ]
    for key in ("name", "tool_call_id"):
        if (value := getattr(message, key)) is not None:
            plain[key] = value
    if message.reasoning is not None:
        plain["reasoning_content"] = message.reasoning
        if not (content and message.tool_calls):  # gpt-oss's name for it; its template refuses all three
            plain["thinking"] = message.reasoning
    return plain


def _object(text: str) -> Any:
    """A call's arguments as an object; as they are where the model wrote none."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def _with_texts(plain: Sequence[dict[str, Any]], messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The same messages with the calls' arguments as JSON text."""
    return [
        {**as_dict, "tool_calls": [_with_text(call, c.arguments) for call, c in pairs]}
        if (pairs := list(zip(as_dict.get("tool_calls", ()), message.tool_calls, strict=True)))
        else as_dict
        for as_dict, message in zip(plain, messages, strict=True)
    ]


def _with_text(call: Mapping[str, Any], arguments: str) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": arguments}}
