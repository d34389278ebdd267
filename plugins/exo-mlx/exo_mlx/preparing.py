"""From a Request to a Prepared: template, tokens, counts, settings. Finds everything that is wrong.

Runs on a side thread of rank 0 and touches no MLX array. What it returns is all that any rank needs.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from exocli import BadRequest, ContextOverflow, Message, Prepared, Request

from exo_mlx.prefix_cache import PrefixIndex

MAX_TOP_LOGPROBS = 20


class Preparer:
    """`context` in tokens, None = no limit known; `defaults` the config's sampling, `generation` the
    model's generation_config.json; request > config > model > greedy."""

    def __init__(
        self,
        *,
        tokenizer: Any,
        name: str,
        context: int | None,
        end_tokens: frozenset[int],
        defaults: Mapping[str, Any],
        generation: Mapping[str, Any],
        index: PrefixIndex,
    ) -> None:
        self._tokenizer = tokenizer
        self._name = name
        self._context = context
        self._end = sorted(end_tokens)
        self._defaults = defaults
        self._generation = generation
        self._index = index

    def prepare(self, request: Request) -> Prepared:
        """Raises BadRequest, naming the field, or ContextOverflow with both counts."""
        tokens = self.tokenize(request)
        count = len(tokens)
        if self._context is not None and count >= self._context:
            raise ContextOverflow(
                f"The prompt has {count} tokens; {self._name} takes {self._context} with the reply. "
                "Shorten it or choose a model with a longer context.",
                prompt_tokens=count,
                context=self._context,
            )
        settings = {
            **self._sampling(request),
            "stop": self._stops(request),
            "end": self._end,
            "logprobs": self._logprobs(request),
            "continuing": request.continue_last or request.task == "complete",
        }
        return Prepared(
            id=request.id,
            prompt_tokens=count,
            max_tokens=self._max_tokens(request, count),
            tokens=tuple(tokens),
            settings=settings,
            reuse=self._index.lookup(tokens),
        )

    # --------------------------------------------------------------------------------- the prompt

    def tokenize(self, request: Request) -> list[int]:
        """The prompt's token ids, with the template applied for a chat."""
        if request.task == "complete":
            if not request.prompt:
                raise BadRequest("The prompt is empty.", field="prompt")
            tokens: list[int] = self._tokenizer.encode(request.prompt)
        else:
            text = self._render(request)
            tokens = self._tokenizer.encode(text, add_special_tokens=False)
        if not tokens:
            raise BadRequest("The prompt has no tokens.", field="messages")
        return tokens

    def _render(self, request: Request) -> str:
        messages = [_plain(i, message) for i, message in enumerate(request.messages)]
        if not messages:
            raise BadRequest("There are no messages.", field="messages")
        if not self._tokenizer.has_chat_template:
            raise BadRequest(
                f"{self._name} has no chat template (it is a base model): it can complete a text, not chat."
            )
        if request.continue_last and request.messages[-1].role != "assistant":
            raise BadRequest("Only an assistant's message can be continued.", field="messages")
        kwargs = dict(request.template_kwargs)
        if request.reasoning is not None:
            kwargs.setdefault("enable_thinking", bool(request.reasoning))
        if request.tools:
            kwargs["tools"] = list(request.tools)
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=not request.continue_last,
                continue_final_message=request.continue_last,
                **kwargs,
            )
        except Exception as error:  # a template is the model's own program and may raise anything
            text = " ".join(str(error).split())
            raise BadRequest(f"The chat template of {self._name} refuses these messages: {text}") from error
        return text

    # ------------------------------------------------------------------------------- the settings

    def _max_tokens(self, request: Request, prompt_tokens: int) -> int:
        room = (self._context or 1 << 31) - prompt_tokens
        if request.max_tokens is None:
            return room
        if request.max_tokens <= 0:
            raise BadRequest(f"max_tokens must be at least 1, not {request.max_tokens}.", field="max_tokens")
        return min(request.max_tokens, room)

    def _stops(self, request: Request) -> list[str]:
        if any(not stop for stop in request.stop):
            raise BadRequest("A stop string must not be empty.", field="stop")
        return list(request.stop)

    def _logprobs(self, request: Request) -> int | None:
        if request.logprobs is not None and not 0 <= request.logprobs <= MAX_TOP_LOGPROBS:
            text = f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}, not {request.logprobs}."
            raise BadRequest(text, field="logprobs")
        return request.logprobs

    def _sampling(self, request: Request) -> dict[str, Any]:
        asked = asdict(request.sampling)
        # A model that says do_sample: false is greedy whatever temperature stands beside it.
        model = self._generation if self._generation.get("do_sample", True) else {}

        def pick(name: str, low: float, high: float, default: float) -> float:
            for source in (asked, self._defaults, model):
                if (value := source.get(name)) is not None:
                    break
            else:
                return default
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or not low <= value <= high:
                raise BadRequest(f"{name} must be from {low:g} to {high:g}, not {value}.", field=name)
            return value  # type: ignore[no-any-return]

        seed = asked.get("seed")
        if seed is None:
            seed = self._defaults.get("seed")
        if seed is None:
            seed = secrets.randbits(32)
        top_p = pick("top_p", 0.0, 1.0, 1.0)
        return {
            "temperature": pick("temperature", 0.0, 100.0, 0.0),
            "top_p": top_p if top_p > 0 else 1e-9,  # 0 keeps the likeliest token alone
            "top_k": max(0, int(pick("top_k", -1, 1 << 31, 0))),
            "min_p": pick("min_p", 0.0, 1.0, 0.0),
            "seed": int(seed) & (1 << 64) - 1,
        }


def _plain(index: int, message: Message) -> dict[str, Any]:
    """The dict a chat template sees; text parts joined, absent keys left out."""
    where = f"messages[{index}]"
    content = message.content
    if isinstance(content, tuple):
        if any(part.kind != "text" for part in content):
            raise BadRequest(f"{where} has a part that is not text.", field=where)
        content = "".join(part.text for part in content)
    if content is None and not (message.role == "assistant" and message.tool_calls):
        raise BadRequest(f"{where} ({message.role}) has no content.", field=where)
    # Few templates know OpenAI's "developer"; it is a system message.
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    plain["content"] = content or ""
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    for key in ("name", "tool_call_id"):
        if (value := getattr(message, key)) is not None:
            plain[key] = value
    if message.reasoning is not None:
        plain["reasoning_content"] = message.reasoning
    return plain
