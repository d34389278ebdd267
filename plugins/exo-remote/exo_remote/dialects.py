"""What kinds of servers there are, and which one this is: found out once, by what it says of itself.

Facts only. Who acts on them: messages.py (what to send), chunks.py and ollama.py (what comes back),
stopping.py (how to cancel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from exocli import Capabilities

Progress = Literal["prompt_progress", "comments", "events", "none"]
Cancel = Literal["receipt", "slots", "abort", "close"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """`progress`: where prompt progress is read from: chunks' `prompt_progress`, SSE comments, SSE events
    of their own. `cancel`: "receipt" exo's route, which answers with what happened; "slots" close the
    connection, then see llama.cpp's slots become idle; "abort" SGLang's route, then close; "close" close
    the connection and know no more. `reasoning`: the field of a delta that holds it. `stream_options`:
    whether usage may be asked for; one that refuses it in a 400 is asked again without. `api`: whose
    routes are used."""

    name: str
    progress: Progress = "none"
    cancel: Cancel = "close"
    reasoning: str = "reasoning_content"
    stream_options: bool = True
    api: Literal["openai", "ollama"] = "openai"
    keeps_reasoning: bool = False
    """Earlier turns may carry their reasoning."""
    developer_role: bool = False
    repetition: str = "repetition_penalty"
    """What the repetition penalty is called."""
    any_model: bool = False
    """It answers to names that it does not list."""
    first_model: str | None = None
    """The name of the model it was started with, which its list does not tell."""
    max_tokens: int | None = None
    """What to ask for where nobody set a limit: its own default would cut replies short."""
    capabilities: Capabilities

    def describe(self) -> dict[str, str]:
        """For `exo backends --json`, `-v` and `/about`."""
        usage = "asked for" if self.stream_options and self.api == "openai" else "as it comes"
        return {
            "dialect": self.name,
            "progress": self.progress,
            "cancel": self.cancel,
            "reasoning": self.reasoning,
            "usage": usage,
        }


def _can(**more: Any) -> Capabilities:
    """What nearly all servers offer; each refuses in its own words what its model cannot do."""
    common: dict[str, Any] = {
        "tasks": ("chat", "complete", "embed"),
        "inputs": ("text", "image"),
        "max_concurrency": 256,
        "tools": True,
        "schema": True,
        "logprobs": True,
        "seed": True,
        "penalties": True,
    }
    return Capabilities(**{**common, **more})


UPPER_BOUND = _can(continue_last=True, cancel_prefill="chunk", kv_on_cancel="kept")
"""Of all dialects; the opened engine narrows it."""

EXO = Dialect(
    name="exo",
    progress="prompt_progress",
    cancel="receipt",
    keeps_reasoning=True,
    developer_role=True,
    capabilities=UPPER_BOUND,
)
LLAMA_CPP = Dialect(
    name="llama.cpp",
    progress="prompt_progress",
    cancel="slots",
    keeps_reasoning=True,
    repetition="repeat_penalty",
    any_model=True,
    # Between batches of up to 2,048 tokens. What was read stays in the slot, but it does not say how much.
    capabilities=_can(continue_last=True, cancel_prefill="chunk"),
)
VLLM = Dialect(
    name="vllm",
    keeps_reasoning=True,
    capabilities=_can(continue_last=True, cancel_prefill="chunk"),
)
SGLANG = Dialect(
    name="sglang",
    cancel="abort",
    keeps_reasoning=True,
    capabilities=_can(continue_last=True, cancel_prefill="chunk"),
)
OLLAMA = Dialect(
    name="ollama",
    api="ollama",
    reasoning="thinking",
    repetition="repeat_penalty",
    capabilities=_can(continue_last=True, cancel_prefill="chunk"),
)
LM_STUDIO = Dialect(
    name="lmstudio",
    progress="events",
    reasoning="reasoning",
    repetition="repeat_penalty",
    capabilities=_can(),
)
MLX_LM = Dialect(
    name="mlx-lm",
    progress="comments",
    reasoning="reasoning",
    first_model="default_model",
    max_tokens=1 << 17,
    # It stops after a chunk of 2,048 tokens, and a request with a seed only after the whole prompt.
    capabilities=_can(tasks=("chat", "complete"), inputs=("text",), schema=False),
)
OPENAI = Dialect(name="openai", developer_role=True, capabilities=_can())

DIALECTS: Mapping[str, Dialect] = {
    d.name: d for d in (EXO, LLAMA_CPP, VLLM, SGLANG, OLLAMA, LM_STUDIO, MLX_LM, OPENAI)
}
_OWNERS: Mapping[str, Dialect] = {
    "llamacpp": LLAMA_CPP,
    "vllm": VLLM,
    "sglang": SGLANG,
    "organization_owner": LM_STUDIO,
}


def by_listing(server: str, models: Sequence[Mapping[str, Any]]) -> Dialect | None:
    """From the answer to `GET /v1/models`: the Server header, and whom the models belong to."""
    if server.lower().startswith("llama.cpp"):
        return LLAMA_CPP
    owners = [str(model.get("owned_by", "")) for model in models]
    known = next((_OWNERS[owner] for owner in owners if owner in _OWNERS), None)
    if known is not None:
        return known
    if server.startswith("BaseHTTP/") and not any(owners):
        return MLX_LM
    return None
