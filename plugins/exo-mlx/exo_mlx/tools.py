"""Tool calls: from what a model wrote to calls, and from a tool_choice to what makes a model write one.

mlx-lm's parsers know each model's own format; what small models write instead, bare or fenced JSON, is read
here. Pure; knows no tokens.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exocli import BadRequest, Request

Tools = Sequence[Mapping[str, Any]]
"""As in OpenAI's Chat API: {"type": "function", "function": {"name", "description"?, "parameters"?}}."""


def offered(request: Request) -> list[dict[str, Any]]:
    """The tools that the model is shown. Raises BadRequest for what is none."""
    for index, tool in enumerate(request.tools):
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRequest(f"tools[{index}] has no function with a name.", field="tools")
    return [] if request.tool_choice == "none" else [dict(tool) for tool in request.tools]


def new_call_id() -> str:
    """Nine letters and digits: the templates of some models refuse any other length."""
    return secrets.token_hex(5)[:9]


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments` is JSON text of an object."""

    name: str
    arguments: str
    id: str = field(default_factory=new_call_id)


def parser(parse: Callable[..., Any] | None, tools: Tools) -> Callable[[str], list[Call]] | None:
    """`parse` is mlx-lm's for the model → text between the tags to calls, raising ValueError where there is
    none; None where no tools are offered."""
    if not tools or parse is None:
        return None

    def calls(text: str) -> list[Call]:
        try:
            return calls_of(parse(text, list(tools)))
        except Exception as error:  # a parser raises anything for what it did not expect
            raise ValueError("not a call") from error

    return calls


def calls_of(parsed: Any) -> list[Call]:
    """One call or a list of them, as parsers and models give them. Raises ValueError."""
    items = parsed if isinstance(parsed, list) else [parsed]
    if not items:
        raise ValueError("no call")
    return [_call(item) for item in items]


def _call(item: Any) -> Call:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = {**item["function"], **({"id": item["id"]} if "id" in item else {})}
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError("a call without a name")
    arguments = item.get("arguments", item.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments or "{}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("arguments that are no object")
    text = json.dumps(arguments, ensure_ascii=False)
    # Some models number their calls themselves and want these names back.
    id = item.get("id")
    return Call(name, text, id) if isinstance(id, str) and id else Call(name, text)


# ---------------------------------------------------------------------------------- calls without tags


_OPENERS = ("", "```", "```json", "```tool_call", "<tool_call>", "<|python_tag|>", "[TOOL_CALLS]")


class BareCalls:
    """Holds back an answer as long as it may be nothing but calls of the tools offered, in bare or fenced
    JSON: {"name", "arguments" | "parameters"}, one or several."""

    _AROUND = re.compile(r"(?:\s|[,;\[\]]|```\w*|</?tool_call>|<\|python_tag\|>|\[TOOL_CALLS\])*")

    def __init__(self, tools: Tools) -> None:
        self._names = {str(tool["function"]["name"]) for tool in tools}
        keys = [f'"name":"{name}"' for name in self._names]
        keys += [f'"{key}":' for key in ("type", "id", "function", "arguments", "parameters")]
        self._beginnings = [f"{o}{b}{{{key}" for o in _OPENERS for b in ("", "[") for key in keys]
        self._held: str | None = "" if tools else None
        self._begun = False

    def feed(self, text: str) -> str:
        """→ what is certainly text."""
        if self._held is None:
            return text
        self._held += text
        if not self._begun:
            seen = "".join(self._held.split())
            self._begun = any(seen.startswith(beginning) for beginning in self._beginnings)
            if not self._begun and not any(beginning.startswith(seen) for beginning in self._beginnings):
                return self.release()
        return ""

    def release(self) -> str:
        """What was held is text, and so is all that follows."""
        held, self._held = self._held or "", None
        return held

    def finish(self) -> tuple[list[Call], str]:
        """The model has ended → the calls, or the text."""
        text = self.release()
        try:
            return list(self._read(text)), ""
        except ValueError:
            return [], text

    def _read(self, text: str) -> Iterator[Call]:
        """Raises ValueError where anything but calls is in it."""
        decoder = json.JSONDecoder()
        at = self._after(text, 0)
        if at == len(text):
            raise ValueError("no call")
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            call = _call(value)
            if call.name not in self._names:
                raise ValueError("not a tool that was offered")
            yield call
            at = self._after(text, at)

    def _after(self, text: str, at: int) -> int:
        match = self._AROUND.match(text, at)
        return match.end() if match else at


# ------------------------------------------------------------------------------------------ tool_choice


def forced(request: Request) -> Request | None:
    """For a tool_choice that demands a call: the request whose format is that call's JSON, by which the
    grammar of structured output makes it certain; None where the model is free. Raises BadRequest."""
    choice = request.tool_choice
    if choice in (None, "auto", "none"):
        return None
    tools = _chosen(offered(request), choice)
    schema: dict[str, Any] = {"anyOf": [_schema(tool["function"]) for tool in tools]}
    return replace(request, format={"type": "json_schema", "schema": schema}, tools=())


def _chosen(tools: Tools, choice: Any) -> Tools:
    if not tools:
        raise BadRequest("tool_choice demands a call, but there are no tools.", field="tool_choice")
    if choice == "required":
        return tools
    name = choice.get("function", {}).get("name") if isinstance(choice, Mapping) else None
    if name is None:
        text = 'tool_choice must be "none", "auto", "required" or name a function.'
        raise BadRequest(text, field="tool_choice")
    chosen = [tool for tool in tools if tool["function"]["name"] == name]
    if not chosen:
        names = ", ".join(tool["function"]["name"] for tool in tools)
        raise BadRequest(f"tool_choice names {name}, but the tools are {names}.", field="tool_choice")
    return chosen


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": function.get("parameters") or {"type": "object"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
