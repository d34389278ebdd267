"""What runs, cancels, and the server's own state. Everything here answers at once or by a deadline."""

from __future__ import annotations

import time

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.server.generate import json_response
from exocli.server.hub import Model
from exocli.server.problems import Leaving
from exocli.server.settings import STALLED_AFTER_S
from exocli.server.state import State, state_of


async def requests(http: HttpRequest) -> Response:
    running = state_of(http).requests.running.values()
    return json_response({"data": [one.summary() for one in running]})


async def cancel(http: HttpRequest) -> Response:
    status, body = await state_of(http).requests.cancel(http.path_params["id"])
    return json_response(body, status)


async def cancel_all(http: HttpRequest) -> Response:
    receipts = await state_of(http).requests.cancel_all()
    late = any(receipt["state"] == "cancelling" for receipt in receipts)
    return json_response({"data": receipts}, 202 if late else 200)


async def health(http: HttpRequest) -> Response:
    """503 while a model cannot be used or has stopped answering; 200 else."""
    state = state_of(http)
    models = [_health(state, model) for model in state.hub.unique]
    bad = [m for m in models if m["state"] in ("failed", "stalled")]
    body = {
        "status": "degraded" if bad else "leaving" if state.leaving else "ok",
        "models": models,
        "requests": len(state.requests.running),
        "uptime_s": round(time.time() - state.started, 1),
    }
    return json_response(body, 503 if bad else 200)


def _health(state: State, model: Model) -> dict[str, object]:
    running = [one for one in state.requests.running.values() if one.model is model]
    working = [one for one in running if one.phase in ("prefill", "decode")]
    row: dict[str, object] = {
        "name": model.name,
        "state": model.state,
        "running": len(working),
        "waiting": len(running) - len(working),
        "restarts": model.restarts,
    }
    if model.problem is not None:
        row["error"] = {"code": model.problem.code, "message": model.problem.message}
    if working:
        silent = time.monotonic() - max(one.heard for one in working)
        row["silent_s"] = round(silent, 1)
        steps = model.opened is not None and model.opened.spec.protocol == "step"
        if steps and silent > STALLED_AFTER_S:  # a stream may be silent by right: a server's long prefill
            row["state"] = "stalled"
    return row


async def ready(http: HttpRequest) -> Response:
    state = state_of(http)
    if state.leaving:
        raise Leaving("The server is shutting down.")
    return json_response({"status": "ready"})


async def metrics(http: HttpRequest) -> Response:
    return Response(state_of(http).metrics.text(), media_type="text/plain; version=0.0.4")
