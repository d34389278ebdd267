"""`GET /openapi.json`: the routes, their bodies by the pydantic models that check them, their errors."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.server import (
    anthropic,
    not_offered,
    ollama,
    ollama_embed,
    ollama_models,
    openai_chat,
    openai_completions,
    openai_embeddings,
)
from exocli.server import openai_responses as responses
from exocli.server.generate import json_response
from exocli.server.problems import api_of

SSE, LINES, JSON = "text/event-stream", "application/x-ndjson", "application/json"

ROUTES: tuple[tuple[str, str, str, type[BaseModel] | None, tuple[str, ...]], ...] = (
    ("post", "/v1/chat/completions", "OpenAI Chat Completions", openai_chat.ChatRequest, (JSON, SSE)),
    ("post", "/v1/completions", "OpenAI Completions", openai_completions.CompletionRequest, (JSON, SSE)),
    ("post", "/v1/responses", "OpenAI Responses, stateless", responses.ResponsesRequest, (JSON, SSE)),
    ("get", "/v1/responses/{id}", "A response while it is in flight", None, (JSON,)),
    ("post", "/v1/responses/{id}/cancel", "Cancel a response", None, (JSON,)),
    ("post", "/v1/embeddings", "OpenAI Embeddings", openai_embeddings.EmbeddingsRequest, (JSON,)),
    ("get", "/v1/models", "The models' names", None, (JSON,)),
    ("get", "/v1/models/{name}", "One model", None, (JSON,)),
    ("post", "/v1/messages", "Anthropic Messages", anthropic.MessagesRequest, (JSON, SSE)),
    ("post", "/v1/messages/count_tokens", "Count a prompt's tokens", anthropic.CountRequest, (JSON,)),
    ("post", "/api/chat", "Ollama chat", ollama.ChatRequest, (LINES, JSON)),
    ("post", "/api/generate", "Ollama generate; load and unload", ollama.GenerateRequest, (LINES, JSON)),
    ("post", "/api/embed", "Ollama embeddings", ollama_embed.EmbedRequest, (JSON,)),
    ("post", "/api/embeddings", "The older form, of one text", ollama_embed.EmbeddingsRequest, (JSON,)),
    ("post", "/api/show", "About a model", ollama_models.ShowRequest, (JSON,)),
    ("get", "/api/tags", "The models' names", None, (JSON,)),
    ("get", "/api/ps", "Loaded models", None, (JSON,)),
    ("get", "/api/version", "The server's version", None, (JSON,)),
    ("get", "/v1/requests", "Requests in flight", None, (JSON,)),
    ("post", "/v1/requests/cancel", "Cancel all requests", None, (JSON,)),
    ("post", "/v1/requests/{id}/cancel", "Cancel one request; answers with its receipt", None, (JSON,)),
    ("post", "/v1/cancel/{id}", "The same", None, (JSON,)),
    ("get", "/health", "The truth about the engines", None, (JSON,)),
    ("get", "/ready", "Whether requests are taken", None, (JSON,)),
    ("get", "/metrics", "For Prometheus", None, ("text/plain",)),
    *(("post", path, "Not offered yet", None, (JSON,)) for path in not_offered.PATHS),
)


def _object(required: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [required], "properties": properties}


_TEXTS = {"message": {"type": "string"}, "type": {"type": "string"}, "code": {"type": ["string", "null"]}}
ERRORS = {
    "openai": _object("error", {"error": _object("message", _TEXTS)}),
    "anthropic": _object("error", {"type": {"const": "error"}, "error": _object("message", _TEXTS)}),
    "ollama": _object("error", {"error": {"type": "string"}}),
}


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    models = [route[3] for route in ROUTES if route[3] is not None]
    references, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, model, media in ROUTES:
        content = {kind: {"schema": {"type": "object"} if kind == JSON else {}} for kind in media}
        error = {"description": "An error", "content": {JSON: {"schema": ERRORS[api_of(path)]}}}
        operation: dict[str, Any] = {
            "summary": summary,
            "responses": {"200": {"description": "Done", "content": content}, "default": error},
        }
        if path.endswith("/cancel") or "/cancel/" in path:
            operation["responses"]["202"] = {
                **operation["responses"]["200"],
                "description": "Being cancelled",
            }
        if path == "/health":
            operation["responses"]["503"] = operation["responses"]["200"]
        if model is not None:
            schema = references[(model, "validation")]
            operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        if names:
            string = {"type": "string", "minLength": 1}
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": string} for name in names
            ]
        paths.setdefault(path, {})[method] = operation
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}}
    schemes["key"] = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "exo", "version": version("exocli")},
        "paths": paths,
        "components": {"schemas": definitions.get("$defs", {}), "securitySchemes": schemes},
    }


async def openapi(http: HttpRequest) -> Response:
    return json_response(document())
