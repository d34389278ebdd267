"""Routes that plugins add under /x/NAME/, behind the same key, Host and CORS checks.

A plugin sees a Context: models, stream, cancel; nothing else of the server. One that fails is left out
with a warning, and the rest is served.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

from starlette.routing import BaseRoute, Mount

from exocli import plugins
from exocli.backend import load_object
from exocli.server.requests import Running
from exocli.server.state import State
from exocli.types import Event, Request


@dataclass(frozen=True, slots=True)
class Context:
    """What a plugin's routes may do."""

    _name: str
    _state: Callable[[], State]

    def models(self) -> list[str]:
        """The names this server answers to."""
        return list(self._state().hub.models)

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        """Run a request like any other: Started first, Finished last. To leave early cancels it.
        Raises ModelNotFound, Overloaded."""
        state = self._state()
        state.refuse_while_leaving()
        model, _ = state.hub.find(request.model or None)
        request = replace(request, id=state.requests.choose_id(request.id), model=model.name)
        running = Running(request=request, model=model, api=f"x.{self._name}", client=f"plugin {self._name}")
        state.requests.start(running)
        try:
            async for event in running.events():
                yield event
        finally:
            running.leave()

    async def cancel(self, request_id: str) -> dict[str, Any]:
        """The receipt. Raises UnknownRoute for an id that nobody knows."""
        _, receipt = await self._state().requests.cancel(request_id)
        return receipt


def mounts(state: Callable[[], State], warn: Callable[[str], object]) -> list[BaseRoute]:
    """Every plugin's routes. `state` is asked at the first request, when it is there."""
    found: list[BaseRoute] = []
    for name, registered in plugins.manager().routes.items():
        try:
            routes = load_object(registered.spec.routes)(Context(name, state))
            found.append(Mount(f"/x/{name}", routes=list(routes)))
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split())
            whose = f"the routes {name} of {registered.distribution}"
            warn(f"{whose} are left out: {type(error).__name__}: {reason}")
    return found
