"""From a Request to a Prepared: template, tokens, counts, settings. Finds everything that is wrong.

Runs on a side thread of rank 0 and touches no MLX array. What it returns is all that any rank needs.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from exocli import BadRequest, ContextOverflow, Prepared, Request

from exo_mlx import constraint, penalties, tools
from exo_mlx.grammar import Grammars
from exo_mlx.prefix_cache import PrefixIndex
from exo_mlx.template import ChatTemplate, Rendered

MAX_TOP_LOGPROBS = 20
MAX_STOPS = 256
"""Every token's text is compared with each of them, while the batch waits."""
SURE_TO_COUNT = 1 << 20
"""Characters whose tokens are counted to the last one: a second's work."""
A_TOKEN = 8
"""Characters. A text with more for every token of the context, whose beginning is too long already, is not
read to its end: megabytes would keep every other request waiting."""


class Preparer:
    """`context` in tokens, None = no limit known; `kv_tokens`: what memory holds for one request, None =
    no bound; `trims_below` as in caches.py; `defaults` the config's sampling, `generation` the
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
        kv_tokens: int | None = None,
        trims_below: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._name = name
        self._context = context
        self._end = sorted(end_tokens)
        self._defaults = defaults
        self._generation = generation
        self._index = index
        self._template = ChatTemplate(tokenizer, name)
        self.grammars = Grammars(tokenizer, end_tokens, name)
        self._kv_tokens = kv_tokens
        self._trims_below = trims_below

    def prepare(self, request: Request) -> Prepared:
        """Raises BadRequest, naming the field, or ContextOverflow with both counts."""
        rendered = self._render(request)
        self._check_beginning(rendered, request)
        tokens = self._encode(rendered, request)
        count = len(tokens)
        self._check_room(count, str(count))
        max_tokens = self._max_tokens(request, count)
        settings = {
            **self._sampling(request),
            "penalties": self._penalties(request),
            "constraint": self._constraint(request, tokens, rendered.thinking),
            "stop": self._stops(request),
            "end": self._end,
            "logprobs": self._logprobs(request),
            **self._reply(request, rendered),
            "keep_at": self._keep_at(request, tokens, max_tokens),
        }
        return Prepared(
            id=request.id,
            prompt_tokens=count,
            max_tokens=max_tokens,
            tokens=tuple(tokens),
            settings=settings,
            reuse=self._index.lookup(tokens),
        )

    # --------------------------------------------------------------------------------- the prompt

    def _check_beginning(self, rendered: Rendered, request: Request) -> None:
        """Is it too long by far? `prompt_tokens` then are those of its beginning."""
        room = min(self._context or 1 << 62, self._kv_tokens or 1 << 62)
        size = max(SURE_TO_COUNT, A_TOKEN * room)
        if len(rendered.text) > size:
            count = len(self._encode(Rendered(rendered.text[:size]), request))
            self._check_room(count, f"more than {count}")

    def _check_room(self, count: int, words: str) -> None:
        if self._context is not None and count >= self._context:
            raise ContextOverflow(
                f"The prompt is too long: {words} tokens; {self._name} takes {self._context} with the reply. "
                "Shorten it or choose a model with a longer context.",
                prompt_tokens=count,
                context=self._context,
            )
        if self._kv_tokens is not None and count >= self._kv_tokens:
            raise ContextOverflow(
                f"The prompt is too long: {words} tokens; memory here holds {self._kv_tokens} of "
                f"{self._name}, the reply's included. Shorten it, free memory and load the model again, or "
                "use kv_bits=8.",
                prompt_tokens=count,
                context=self._kv_tokens,
            )

    def tokenize(self, request: Request) -> list[int]:
        """The prompt's token ids, with the template applied for a chat."""
        return self._encode(self._render(request), request)

    def _render(self, request: Request) -> Rendered:
        if request.task != "complete":
            return self._template.render(request)
        if not request.prompt:
            raise BadRequest("The prompt is empty.", field="prompt")
        return Rendered(request.prompt)

    def _encode(self, rendered: Rendered, request: Request) -> list[int]:
        special = request.task == "complete"  # a template writes them itself
        tokens: list[int] = self._tokenizer.encode(rendered.text, add_special_tokens=special)
        if not tokens:
            raise BadRequest("The prompt has no tokens.", field="messages")
        return tokens

    def _keep_at(self, request: Request, tokens: list[int], max_tokens: int) -> int | None:
        """After how many of the prompt's tokens a copy of its caches is kept; None = nowhere.

        Where a cache cannot be cut back, the one at the end of a reply serves only a prompt that begins
        with every token of it, and templates leave out reasoning and spaces. What comes before the reply
        stays, in this prompt sent again and in the next turn's.
        """
        if self._trims_below is None or len(tokens) + max_tokens < self._trims_below:
            return None
        stable = len(tokens) - 1
        if request.task == "chat" and not request.continue_last:
            turns = self._encode(self._template.render(request, opening=False), request)
            pairs = zip(tokens[:stable], turns, strict=False)
            stable = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), stable)
            stable = min(stable, len(turns))
        return stable or None

    # ------------------------------------------------------------------------------- the settings

    def _max_tokens(self, request: Request, prompt_tokens: int) -> int:
        room = min(self._context or 1 << 31, self._kv_tokens or 1 << 31) - prompt_tokens
        if request.max_tokens is None:
            return room
        if request.max_tokens <= 0:
            raise BadRequest(f"max_tokens must be at least 1, not {request.max_tokens}.", field="max_tokens")
        return min(request.max_tokens, room)

    def _reply(self, request: Request, rendered: Rendered) -> dict[str, Any]:
        """How the reply begins and what may stand in it, as output.py wants to know it."""
        if request.task == "complete":
            return {"state": None, "continuing": True, "tools": []}
        return {
            "state": "reasoning" if rendered.thinking else "normal",
            "continuing": request.continue_last,
            "tools": tools.offered(request),
        }

    def _stops(self, request: Request) -> list[str]:
        if any(not stop for stop in request.stop):
            raise BadRequest("A stop string must not be empty.", field="stop")
        if len(request.stop) > MAX_STOPS:
            raise BadRequest(
                f"stop takes at most {MAX_STOPS} strings, not {len(request.stop)}.", field="stop"
            )
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

    def _penalties(self, request: Request) -> dict[str, Any]:
        size = penalties.vocabulary_of(self._tokenizer, self._end)
        return penalties.settings(asdict(request.sampling), self._defaults, self._generation, size)

    def _constraint(self, request: Request, tokens: list[int], thinking: bool) -> dict[str, Any] | None:
        if (forced := tools.forced(request)) is not None:
            try:
                return constraint.settings(forced, tokens, thinking, self._tokenizer, self.grammars)
            except BadRequest as error:
                text = f"This tool_choice cannot be had here: {error.message}"
                raise BadRequest(text, field="tool_choice") from error
        if request.format is None:
            return None
        return constraint.settings(request, tokens, thinking, self._tokenizer, self.grammars)
