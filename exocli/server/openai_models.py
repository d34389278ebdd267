"""`GET /v1/models` in OpenAI's shape, and in Anthropic's for its own client."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.server.generate import json_response
from exocli.server.hub import Model
from exocli.server.state import state_of


def _openai(name: str, model: Model) -> dict[str, Any]:
    facts = {"context_length": model.facts["context"]} if model.facts.get("context") else {}
    sure = model.state == "loaded" or model.tasks == ("embed",)  # of a text model files tell by and large
    tasks = {"tasks": list(model.tasks)} if sure else {}
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": model.served.backend,
        **facts,
        **tasks,
    }


def _anthropic(name: str, model: Model) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


async def models(http: HttpRequest) -> Response:
    known = state_of(http).hub.models.items()
    if "anthropic-version" in http.headers:
        rows = [_anthropic(name, model) for name, model in known]
        ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {}
        return json_response({"data": rows, "has_more": False, **ends})
    return json_response({"object": "list", "data": [_openai(name, model) for name, model in known]})


async def model(http: HttpRequest) -> Response:
    name = http.path_params["name"]
    if not name:  # /v1/models/
        return await models(http)
    found, _ = state_of(http).hub.find(name)
    shape = _anthropic if "anthropic-version" in http.headers else _openai
    return json_response(shape(name, found))
