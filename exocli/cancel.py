"""The cancel token: how a wish to stop travels inside one process.

Between processes it is the `cancel` command of the worker's log (runtime/wire.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from exocli.errors import Cancelled


class CancelToken:
    """Says once, to whoever holds it, that the work is no longer wanted.

    Thread-safe and idempotent: the first reason wins. Callbacks run in the thread that cancels, once
    each; one added after the cancel runs at once, in the thread that adds it.
    """

    __slots__ = ("_callbacks", "_lock", "_reason", "asked_at")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._callbacks: list[Callable[[], object]] = []
        self.asked_at: float | None = None
        """time.monotonic() of the first cancel, from which latency_ms is measured."""

    @property
    def cancelled(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        return self._reason

    def cancel(self, reason: str = "cancelled") -> bool:
        """Ask to stop; True if this call was the first. Everybody is told, then the first error that a
        callback raised is raised here."""
        with self._lock:
            if self._reason is not None:
                return False
            self._reason = reason
            self.asked_at = time.monotonic()
            callbacks, self._callbacks = self._callbacks, []
        errors = []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return True

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` on cancel; returns a function that takes the wish back."""
        with self._lock:
            if self._reason is None:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    def raise_if_cancelled(self) -> None:
        """Raises Cancelled if the work is no longer wanted."""
        if self._reason is not None:
            raise Cancelled(self._reason)

    def _forget(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)
