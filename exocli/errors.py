"""What can go wrong, as types. Each error is one sentence that names the thing and the way out.

Everything above (CLI, server, worker protocol) turns these into exit codes, HTTP statuses and
`error` objects; nothing here knows about any of them beyond the numbers. Imports nothing of exocli.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ExoError(Exception):
    """A failure that a person can read.

    `code` is the stable machine-readable name, `exit_code` what a command ends with, `http_status`
    what a route answers. `details` holds plain JSON data for programs (counts, the field's name).
    """

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = {key: value for key, value in details.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """`{"code", "message", "details"?}`: the wire and event form."""
        data: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.details:
            data["details"] = self.details
        return data


class UsageError(ExoError):
    """The command line, the config or an option is wrong."""

    code = "usage"
    exit_code = 2
    http_status = 400


class BadRequest(ExoError):
    """The request itself cannot be served, by this or any retry. `field` names what is wrong."""

    code = "bad_request"
    http_status = 400


class ContextOverflow(BadRequest):
    """Prompt plus reply do not fit the model. details: `prompt_tokens`, `context`."""

    code = "context_length_exceeded"


class Unsupported(BadRequest):
    """The backend's capabilities do not name what the request asks for."""

    code = "unsupported"


class Unavailable(ExoError):
    """A backend or a model cannot be used now."""

    code = "unavailable"
    exit_code = 3
    http_status = 503


class BackendNotFound(Unavailable):
    code = "backend_not_found"
    http_status = 404


class ModelNotFound(Unavailable):
    code = "model_not_found"
    http_status = 404


class ModelBroken(Unavailable):
    """The model's files are there and cannot be used."""

    code = "model_broken"


class OutOfMemory(Unavailable):
    """The model or request does not fit this machine."""

    code = "out_of_memory"


class WorkerDied(ExoError):
    """A worker process ended while it had work. details: `rank`, `exit`, `stderr`."""

    code = "worker_died"
    http_status = 503


class Stalled(WorkerDied):
    """A rank no longer makes progress."""

    code = "stalled"


class EngineFailed(ExoError):
    """The engine raised inside a step; its requests are lost, the next one starts afresh."""

    code = "engine_failed"


class Overloaded(ExoError):
    """The queue is full. details: `retry_after` in seconds."""

    code = "overloaded"
    http_status = 429


class UpstreamError(ExoError):
    """A remote server answered with an error or broke off. details: `status`, `url`, `upstream` (its
    words). A gateway passes the status on."""

    code = "upstream_error"
    http_status = 502

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message, **details)
        status = details.get("status")
        if isinstance(status, int) and 400 <= status < 600:
            self.http_status = status  # type: ignore[misc]


class RemoteFailure(ExoError):
    """An error that crossed a process boundary, with the code it had there."""

    def __init__(self, code: str, message: str, /, **details: Any) -> None:
        super().__init__(message, **details)
        self.code = code  # type: ignore[misc]
        known = _BY_CODE.get(code)
        if known is not None:
            self.exit_code = known.exit_code  # type: ignore[misc]
            self.http_status = known.http_status  # type: ignore[misc]


class Cancelled(BaseException):
    """The caller asked to stop. Derives from BaseException so that `except Exception` cannot eat it."""

    def __init__(self, reason: str = "cancelled") -> None:
        super().__init__(reason)
        self.reason = reason


def _subclasses(cls: type[ExoError]) -> dict[str, type[ExoError]]:
    found = {cls.code: cls}
    for sub in cls.__subclasses__():
        if sub is not RemoteFailure:
            found.update(_subclasses(sub))
    return found


_BY_CODE: dict[str, type[ExoError]] = _subclasses(ExoError)


def from_dict(data: dict[str, Any]) -> ExoError:
    """The inverse of `ExoError.to_dict`; unknown codes become RemoteFailure."""
    code, message = str(data.get("code", "failed")), str(data.get("message", "failed"))
    given = data.get("details")
    details = given if isinstance(given, dict) else {}  # an engine of someone else's may give anything
    known = _BY_CODE.get(code)
    if known is None:
        return RemoteFailure(code, message, **details)
    return known(message, **details)
