"""Is a request within what the capabilities name? Asked before any engine sees it."""

from __future__ import annotations

from collections.abc import Mapping

from exocli.backend import Capabilities
from exocli.errors import BadRequest, Unsupported
from exocli.types import Request

TASK_WORDS: Mapping[str, str] = {
    "chat": "chat",
    "complete": "complete a text",
    "embed": "make embeddings",
    "image": "make images",
}
"""What a model does, in words for a person, by its task."""


# Many clients always send these; they ask an engine without penalties for nothing.
_NEUTRAL = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}}


def check_supported(request: Request, capabilities: Capabilities, backend: str, model: str = "") -> None:
    """Raises Unsupported, naming the field, for what the capabilities do not name; BadRequest for a chat
    without anything to answer and an embed without texts, so that no engine has to expect one. `model`: the
    capabilities are those of the backend with this model."""
    who = f"{model} on {backend}" if model else f"The backend {backend}"

    def refuse(field_name: str, what: str) -> None:
        raise Unsupported(f"{who} does not offer {what}.", field=field_name)

    if request.task not in capabilities.tasks:
        able = " and ".join(TASK_WORDS.get(task, task) for task in capabilities.tasks) or "nothing"
        asked = TASK_WORDS.get(request.task, request.task)
        text = f"{request.model or f'The backend {backend}'} cannot {asked}, only {able}."
        raise Unsupported(text, field="task", tasks=list(capabilities.tasks))
    if request.task == "embed" and not request.inputs:
        raise BadRequest("There are no texts to embed.", field="input")
    if request.task == "chat" and not request.messages and request.prompt is None:
        raise BadRequest("There are no messages.", field="messages")
    if request.tools and not capabilities.tools:
        refuse("tools", "tools")
    if request.format is not None and not capabilities.schema:
        refuse("format", "structured output")
    if request.logprobs is not None and not capabilities.logprobs:
        refuse("logprobs", "logprobs")
    if request.sampling.seed is not None and not capabilities.seed:
        refuse("seed", "a seed")
    if request.continue_last and not capabilities.continue_last:
        refuse("continue_last", "continuing a reply")
    for name, neutral in _NEUTRAL.items():
        if getattr(request.sampling, name) not in (None, neutral) and not capabilities.penalties:
            refuse(name, name.replace("_", " "))
    for message in request.messages:
        for part in message.content if isinstance(message.content, tuple) else ():
            if part.kind not in capabilities.inputs:
                refuse("messages", f"{part.kind} input")
