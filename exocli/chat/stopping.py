"""The rule of Ctrl-C while a reply is on its way. Pure: told of presses, says what each one means.

First press: cancel. Presses within a second of it are the same wish. After that, while the reply has not
ended, the next one brings the offer to kill the worker, and only a press after the offer kills.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

ONE_PRESS_S = 1.0
"""Presses this close to the first count as one with it."""

Meaning = Literal["cancel", "nothing", "offer", "kill"]


class Stopping:
    """One reply's. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._offered = False
        self._killed = False
        self.asked: float | None = None
        """When the cancel was asked for."""

    def press(self) -> Meaning:
        if self.asked is None:
            self.asked = self._clock()
            return "cancel"
        if self.recent or self._killed:
            return "nothing"
        if not self._offered:
            self._offered = True
            return "offer"
        self._killed = True
        return "kill"

    @property
    def recent(self) -> bool:
        """A press now is still the first one."""
        return self.asked is not None and self._clock() - self.asked < ONE_PRESS_S

    def overdue(self, deadline_s: float) -> bool:
        """True once, when `deadline_s` have passed since the cancel with no offer made: make it now."""
        if self.asked is None or self._offered or self._clock() - self.asked < deadline_s:
            return False
        self._offered = True
        return True
