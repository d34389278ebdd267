"""The application: routes, layers, lifespan. Made by a factory, so that tests and `exo serve` share it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from exocli.server import (
    anthropic,
    control,
    extensions,
    not_offered,
    ollama,
    ollama_embed,
    ollama_models,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_models,
    openai_responses,
    openapi,
    web,
)
from exocli.server.access_log import AccessLog
from exocli.server.auth import Guard
from exocli.server.generate import Api, generate
from exocli.server.hub import Hub, Served
from exocli.server.metrics import Metrics
from exocli.server.outermost import Outermost
from exocli.server.requests import Registry
from exocli.server.settings import Settings
from exocli.server.state import State

Endpoint = Callable[[HttpRequest], Awaitable[Response]]


def _api(api: Api) -> Endpoint:
    return partial(generate, api=api)


async def _pass_on(http: HttpRequest, error: Exception) -> Response:
    """The router's 404 and 405 get their shape in the outermost layer, like every other error."""
    raise error


def routes() -> list[Route]:
    def get(path: str, endpoint: Endpoint) -> Route:
        return Route(path, endpoint, methods=["GET"])

    def post(path: str, endpoint: Endpoint) -> Route:
        return Route(path, endpoint, methods=["POST"])

    return [
        post("/v1/chat/completions", _api(openai_chat.API)),
        post("/v1/completions", _api(openai_completions.API)),
        post("/v1/responses", _api(openai_responses.API)),
        get("/v1/responses/{id}", openai_responses.get_response),
        post("/v1/responses/{id}/cancel", openai_responses.cancel_response),
        post("/v1/embeddings", openai_embeddings.embeddings),
        post("/v1/messages", _api(anthropic.API)),
        post("/v1/messages/count_tokens", anthropic.count_tokens),
        post("/api/chat", _api(ollama.CHAT)),
        post("/api/generate", _api(ollama.GENERATE)),
        post("/api/embed", ollama_embed.embed_route),
        post("/api/embeddings", ollama_embed.embeddings_route),
        post("/api/show", ollama_models.show),
        get("/api/tags", ollama_models.tags),
        get("/api/ps", ollama_models.ps),
        get("/api/version", ollama_models.ollama_version),
        get("/v1/models", openai_models.models),
        get("/v1/models/{name:path}", openai_models.model),
        get("/v1/requests", control.requests),
        post("/v1/requests/cancel", control.cancel_all),
        post("/v1/requests/{id}/cancel", control.cancel),
        post("/v1/cancel/{id}", control.cancel),
        get("/health", control.health),
        get("/ready", control.ready),
        get("/metrics", control.metrics),
        get("/openapi.json", openapi.openapi),
        get("/", web.page),
        get(f"{web.PREFIX}{{digest}}/{{name:path}}", web.asset),
        *(post(path, not_offered.not_offered) for path in not_offered.PATHS),
    ]


def build(settings: Settings, served: Iterable[Served], log: AccessLog | None = None) -> Starlette:
    """An application that holds its models until its lifespan ends."""
    metrics = Metrics()
    hub = Hub(
        served,
        concurrency=settings.max_concurrency,
        max_queue=settings.max_queue,
        idle_unload=settings.idle_unload,
    )
    registry = Registry(metrics.on_token, metrics.on_finished)
    metrics.watch(hub, registry.running.values)
    log = log or AccessLog(settings.log_format, settings.log_prompts)
    state = State(settings=settings, hub=hub, requests=registry, metrics=metrics)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(hub.watch())
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await hub.close()

    def warn(text: str) -> None:
        log.line("warning", text=text)

    app = Starlette(
        routes=[*routes(), *extensions.mounts(lambda: state, warn)],
        middleware=[
            Middleware(Outermost, log=log, metrics=metrics, debug=settings.debug),
            Middleware(
                Guard,
                keys=settings.keys,
                allow_hosts=settings.allow_hosts,
                cors_origins=settings.cors_origins,
            ),
        ],
        exception_handlers={HTTPException: _pass_on},
        lifespan=lifespan,
    )
    app.state.exo = state
    return app
