"""The way of a generating request, the same for every API: body → Call → Running → reply.

What is wrong is found in this order: body, model's name, queue; with the model loaded also everything
that its engine's `prepare` finds. All of it before the first byte of the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.errors import BadRequest, from_dict
from exocli.server import body, spool
from exocli.server.auth import given_key
from exocli.server.problems import cancelled_error, encode
from exocli.server.requests import Running
from exocli.server.state import State, state_of
from exocli.server.streaming import Call, Collected, Reply, collect, frames, respond, unless_gone
from exocli.types import Message

Parse = Callable[[bytes], Call]
MakeReply = Callable[[Call, Running], Reply]


@dataclass(frozen=True, slots=True)
class Api:
    """One generating route. `name` is its label in logs and metrics; `without_prompt` answers a call that
    asks for no text (Ollama: load, unload)."""

    name: str
    parse: Parse
    reply: MakeReply
    without_prompt: Callable[[HttpRequest, State, Call], Awaitable[Response]] | None = None


async def generate(http: HttpRequest, api: Api) -> Response:
    """Raises whatever is to be answered as an error; ClientGone if nobody is left to answer."""
    state = state_of(http)
    state.refuse_while_leaving()
    raw = await body.read(http, state.settings.max_body)
    with spool.all_or_none():
        call = api.parse(raw)
    if call.empty and api.without_prompt is not None:
        return await api.without_prompt(http, state, call)
    try:
        running = start(http, state, api, call)
    except BaseException:
        spool.discard(call.request)
        raise
    reply = api.reply(call, running)
    headers = {"X-Request-Id": running.id}
    if not call.stream:
        collected = await unless_gone(http, collect(running, call.one_tool_call))
        return whole(collected, reply, headers)
    session = running.model.opened
    if session is not None and session.loaded:
        await unless_gone(http, running.checked.wait())
        if running.finished is not None and running.finished.error is not None:
            raise from_dict(running.finished.error)
    return respond(frames(running, reply, state.settings.keepalive), reply.media_type, headers)


def start(http: HttpRequest, state: State, api: Api, call: Call) -> Running:
    """Into the registry, and to the engine's queue. Raises ModelNotFound, Unsupported, Overloaded."""
    request = call.request
    model, served = state.hub.find_for(call.model, request.task)
    if (
        served.system is not None
        and request.messages
        and request.messages[0].role not in ("system", "developer")
    ):
        system = Message(role="system", content=served.system)
        request = replace(request, messages=(system, *request.messages))
    request_id = state.requests.choose_id(http.headers.get("x-request-id"))
    request = replace(request, id=request_id, model=model.name)
    client = http.client.host if http.client else "unknown"
    owner = f"{client} {hash(given_key(http.headers))}"
    running = Running(request=request, model=model, api=api.name, client=client, owner=owner)
    state.requests.start(running, call.timeout or header_timeout(http))
    http.scope["exo.running"] = running  # the outermost layer leaves it when the exchange is over
    if call.keep_alive is not None:
        running.model.keep(call.keep_alive)
    return running


def header_timeout(http: HttpRequest) -> float | None:
    """X-Request-Timeout, in seconds. Raises BadRequest."""
    text = http.headers.get("x-request-timeout")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e7:  # NaN fails this too
        raise BadRequest("X-Request-Timeout must be a number of seconds above 0.", field="X-Request-Timeout")
    return seconds


def whole(collected: Collected, reply: Reply, headers: dict[str, str]) -> Response:
    """The answer to a call that does not stream. Raises what the request ended with."""
    finished = collected.finished
    if finished.error is not None:
        raise from_dict(finished.error)
    if finished.reason == "cancelled" and not collected.begun:
        raise cancelled_error(finished, reply.running.cancel.reason)
    return json_response(reply.whole(collected), headers=headers)


def json_response(data: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(data), status, headers=headers, media_type="application/json")
