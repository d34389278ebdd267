"""The small client behind `exo ps`, `exo cancel` and `exo stop`: one request, one answer, plain errors."""

from __future__ import annotations

import os
from typing import Any

import httpx

from exocli import served
from exocli.errors import ExoError, Unavailable

DEFAULT_URL = "http://127.0.0.1:52415"
CONNECT_S = 5.0
ANSWER_S = 60.0
"""A cancel answers only once every rank has left."""


class Server:
    """A running `exo serve`. `url` may end in a slash or in /v1, None = the one of this machine; the key is
    EXO_API_KEY's first."""

    def __init__(self, url: str | None) -> None:
        if not url:
            here = served.find()
            url = here.url if here is not None else DEFAULT_URL
        self.url = url.rstrip("/").removesuffix("/v1").rstrip("/")
        if "://" not in self.url:
            self.url = f"http://{self.url}"

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def post(self, path: str, data: Any = None) -> Any:
        return self._ask("POST", path, data)

    def _ask(self, method: str, path: str, data: Any) -> Any:
        """The answer's JSON. Raises Unavailable if there is no server, ExoError with its own words."""
        key = next(iter(os.environ.get("EXO_API_KEY", "").split()), "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        try:
            # This machine is never asked through a proxy.
            elsewhere = httpx.URL(self.url).host not in ("127.0.0.1", "localhost", "::1")
            with httpx.Client(timeout=timeout, headers=headers, trust_env=elsewhere) as client:
                answer = client.request(method, self.url + path, json=data)
                body = answer.json()
        except httpx.ConnectError:
            text = f'No server answers at {self.url}: start one with "exo serve", or name it with --url.'
            raise Unavailable(text) from None
        except httpx.TimeoutException:
            raise Unavailable(f"The server at {self.url} does not answer.") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise Unavailable(f"{self.url} is not the address of a server.") from None
        except httpx.HTTPError as error:
            raise Unavailable(f"The server at {self.url} broke off: {error}.") from None
        except ValueError:
            raise ExoError(f"{self.url} does not answer like exo serve; is it another program?") from None
        if answer.status_code == 401:
            wrong = "does not take the key in EXO_API_KEY" if key else "asks for a key"
            raise ExoError(f"{self.url} {wrong}: set EXO_API_KEY to one of the server's.", status=401)
        if answer.status_code >= 400:
            raise ExoError(
                _message(body) or f"{self.url} answers {answer.status_code}.", status=answer.status_code
            )
        return body


def _message(body: Any) -> str | None:
    error = body.get("error") if isinstance(body, dict) else None
    found = error.get("message") if isinstance(error, dict) else error
    return found if isinstance(found, str) else None
