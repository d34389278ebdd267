"""One line a request, on stderr: who asked what, and how it ended. Never a request's text by itself.

A generating request's line waits for its Finished, so that the log tells what the ranks did, not what
the socket saw.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from exocli.server.requests import Running
from exocli.types import to_json

GONE = 499
"""The status in the log where the client left before it got one."""


class AccessLog:
    def __init__(
        self,
        form: Literal["text", "json"],
        prompts: bool,
        write: Callable[[str], object] = sys.stderr.write,
    ) -> None:
        self._form = form
        self._prompts = prompts
        self._write = write

    def exchange(
        self, *, client: str, method: str, path: str, status: int, seconds: float, running: Running | None
    ) -> None:
        fields: dict[str, Any] = {"client": client, "method": method, "path": path, "status": status}
        fields["seconds"] = round(seconds, 4)
        if running is not None:
            fields |= self._outcome(running)
        self.line("request", **fields)

    def _outcome(self, running: Running) -> dict[str, Any]:
        finished = running.finished
        assert finished is not None
        fields: dict[str, Any] = {
            "id": running.id,
            "api": running.api,
            "model": running.model.name,
            "outcome": finished.reason,
            "prompt_tokens": finished.usage.prompt_tokens,
            "cached_tokens": finished.usage.cached_tokens,
            "tokens": finished.usage.completion_tokens,
            "ttft_s": finished.timing.ttft_s,
            "total_s": finished.timing.total_s,
        }
        if finished.cancel is not None:
            fields |= {"why": running.cancel.reason, "phase": finished.cancel.phase}
            fields |= {"processed": finished.cancel.processed, "latency_ms": finished.cancel.latency_ms}
        if finished.error is not None:
            fields |= {"error": finished.error.get("code"), "message": finished.error.get("message")}
        if self._prompts:
            request = running.request
            texts = to_json(request.inputs or request.messages)
            fields["prompt"] = request.prompt if request.prompt is not None else texts
        return fields

    def line(self, event: str, **fields: Any) -> None:
        """Any line of the log. Values are quoted as JSON, so that no text can begin a line of its own."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if self._form == "json":
            text = json.dumps({"time": now, "event": event, **fields})
        else:
            pairs = " ".join(f"{key}={_plain(value)}" for key, value in fields.items())
            text = f"{now} {event} {pairs}"
        try:
            self._write(text + "\n")
        except (OSError, ValueError):
            return  # nobody reads the log any more: that is no reason to stop serving


def _plain(value: Any) -> str:
    if (
        isinstance(value, str)
        and value
        and all(c.isalnum() or c in "._-/:+" for c in value)
        and value.isascii()
    ):
        return value
    return json.dumps(value)
