"""Routes of the known APIs whose task no backend offers yet: a 501 in the API's own error shape."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from exocli.server.problems import NotOffered

PATHS = (
    "/v1/images/generations",
    "/v1/audio/transcriptions",
    "/v1/audio/speech",
    "/api/pull",
)
WHY = {"/api/pull": 'models are pulled on the server\'s machine, with "exo models pull NAME"'}


async def not_offered(http: HttpRequest) -> Response:
    path = http.url.path
    raise NotOffered(f"{path} is not offered: {WHY.get(path, 'no backend of this server has this task')}.")
