"""A limit on the time that a model's own program, its chat template, may take: nothing else could stop it.

Knows threads and the clock; nothing of templates.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TookTooLong(BaseException):
    """Not an Exception: what runs may catch those."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises TookTooLong in the block after so many seconds, between two instructions of Python: a C function
    returns first (PyThreadState_SetAsyncExc of Python's C API)."""
    thread = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    over = False

    def interrupt() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TookTooLong))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)  # one on its way must not arrive later
