"""Ollama's routes about models: tags, ps, show, version, and loading or unloading without a prompt."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.server.body import Body, parse, read
from exocli.server.generate import json_response
from exocli.server.hub import LATEST, Model
from exocli.server.state import State, state_of
from exocli.server.streaming import Call, line, respond, unless_gone
from exocli.types import new_id, to_json

SPOKEN = "0.12.11"
"""The release of Ollama whose API this is: its clients (VS Code's, Continue) refuse to talk to older ones."""


def stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _tagged(name: str) -> str:
    return name if ":" in name else name + LATEST


def _details(model: Model) -> dict[str, Any]:
    dtype = str(model.facts.get("dtype", ""))
    return {
        "parent_model": "",
        "format": model.served.backend,
        "family": model.served.backend,
        "families": [model.served.backend],
        "parameter_size": "",
        "quantization_level": dtype,
    }


def _row(name: str, model: Model) -> dict[str, Any]:
    return {
        "name": _tagged(name),
        "model": _tagged(name),
        "size": model.served.size,
        "digest": hashlib.sha256(model.served.key.encode()).hexdigest(),
        "details": _details(model),
    }


async def tags(http: HttpRequest) -> Response:
    rows = [
        {**_row(name, model), "modified_at": stamp(datetime.fromtimestamp(model.created, UTC))}
        for name, model in state_of(http).hub.models.items()
    ]
    return json_response({"models": rows})


async def ps(http: HttpRequest) -> Response:
    """Loaded models. `expires_at` far in the future: it stays."""
    rows = []
    for model in state_of(http).hub.unique:
        if model.state in ("loaded", "loading"):
            left = model.idle_left
            until = datetime.now(UTC) + timedelta(seconds=left if left is not None else model.keep_s or 1e10)
            ranks = model.opened.ranks if model.opened is not None else []
            memory = sum(int(rank["facts"].get("weight_bytes", 0)) for rank in ranks)
            exo = {"backend": model.served.backend, "state": model.state, "in_use": model.in_use}
            exo["facts"] = to_json(model.facts)
            exo["ranks"] = to_json(ranks) if len(ranks) > 1 else []
            if model.opened is not None and (bound := model.opened.capabilities.kv_tokens) is not None:
                exo["kv_tokens"], exo["kv_reserved"] = bound, model.opened.kv_reserved
            exo["idle_left_s"] = round(left, 1) if left is not None else None
            facts = {"context_length": model.facts["context"]} if model.facts.get("context") else {}
            row = {
                **_row(model.name, model),
                "size": memory or model.served.size,
                "size_vram": memory,
                **facts,
            }
            rows.append({**row, "expires_at": stamp(until), "exo": exo})
    return json_response({"models": rows})


class ShowRequest(Body):
    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


async def show(http: HttpRequest) -> Response:
    state = state_of(http)
    body = parse(ShowRequest, await read(http, state.settings.max_body))
    model, served = state.hub.find(body.model or body.name)
    capabilities = ["embedding"] if model.tasks == ("embed",) else ["completion"]
    if model.opened is not None:
        found = model.opened.capabilities
        capabilities += ["tools"] if found.tools else []
        capabilities += ["vision"] if "image" in found.inputs else []
        capabilities += ["thinking"] if found.reasoning else []
    facts = {f"{served.backend}.{key}": value for key, value in model.facts.items() if _plain(value)}
    context = model.facts.get("context")
    if context:
        facts[f"{served.backend}.context_length"] = context
    return json_response(
        {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "details": _details(model),
            "model_info": {"general.architecture": served.backend, **facts},
            "capabilities": capabilities,
            "modified_at": stamp(datetime.fromtimestamp(model.created, UTC)),
        }
    )


def _plain(value: object) -> bool:
    return isinstance(value, (str, int, float, bool))


async def ollama_version(http: HttpRequest) -> Response:
    return json_response({"version": SPOKEN, "exo": {"version": version("exocli")}})


async def load_or_unload(http: HttpRequest, state: State, call: Call) -> Response:
    """A call without a prompt. The answer comes once the model is loaded (or unloaded)."""
    model = await load_or_unload_now(http, state, call)
    chat = http.url.path == "/api/chat"
    said: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
    answer = {"model": call.model or model.name, "created_at": stamp(datetime.now(UTC)), **said, "done": True}
    if call.keep_alive == 0:
        exo = {"exo": {"in_use": model.in_use}} if model.unload_when_idle else {}
        answer |= {"done_reason": "unload", **exo}
    else:
        answer |= {"done_reason": "load"}
    if not call.stream:
        return json_response(answer)

    async def once() -> AsyncIterator[bytes]:
        yield line(answer)

    return respond(once(), "application/x-ndjson", {})


async def load_or_unload_now(http: HttpRequest, state: State, call: Call) -> Model:
    """Unloads where keep_alive is 0 (when its last request is done), else loads and waits for it."""
    model, _ = state.hub.find(call.model) if call.model else state.hub.find_for(None, call.request.task)
    if call.keep_alive == 0:
        model.unload()
        return model
    if call.keep_alive is not None:
        model.keep(call.keep_alive)
    await unless_gone(http, _load(model))
    return model


async def _load(model: Model) -> None:
    user = f"load-{new_id()}"
    model.entered(user)  # an unload waits meanwhile
    try:
        await (await model.session()).load()
    finally:
        model.left(user)
