"""What the embedding routes have in common: who can serve them, and the vectors in the texts' order."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.errors import EngineFailed
from exocli.server.generate import Api, generate
from exocli.server.problems import NotOffered, cancelled_error
from exocli.server.requests import Running
from exocli.server.state import state_of
from exocli.server.streaming import Collected
from exocli.types import Embedding


async def embed(http: HttpRequest, api: Api) -> Response:
    """Raises NotOffered where no model of this server makes embeddings, whatever is asked."""
    if not state_of(http).hub.able("embed"):
        raise NotOffered(f"{http.url.path} is not offered: no model of this server makes embeddings.")
    return await generate(http, api)


def vectors_of(running: Running, collected: Collected) -> list[tuple[float, ...]]:
    """One for each text, in order. Raises what a cancelled request is answered with: half of the vectors
    are no answer."""
    if collected.finished.reason == "cancelled":
        raise cancelled_error(collected.finished, running.cancel.reason)
    found = {event.index: event.vector for event in collected.events if isinstance(event, Embedding)}
    count = len(running.request.inputs)
    if set(found) != set(range(count)):
        raise EngineFailed(f"The backend gave {len(found)} embeddings for {count} texts.")
    return [found[index] for index in range(count)]
