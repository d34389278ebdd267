"""What the routes share: settings, models, requests, metrics. One object an application."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request as HttpRequest

from exocli.server.problems import Leaving

if TYPE_CHECKING:
    from exocli.server.hub import Hub
    from exocli.server.metrics import Metrics
    from exocli.server.requests import Registry
    from exocli.server.settings import Settings


@dataclass
class State:
    settings: Settings
    hub: Hub
    requests: Registry
    metrics: Metrics
    started: float = field(default_factory=time.time)
    leaving: bool = False
    """No new work: the server is shutting down."""

    def refuse_while_leaving(self) -> None:
        """Raises Leaving."""
        if self.leaving:
            raise Leaving("The server is shutting down.", retry_after=5)


def state_of(http: HttpRequest) -> State:
    state: State = http.app.state.exo
    return state
