"""What `exo serve` was told, as plain data. Knows neither click nor starlette."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_BODY = 32 << 20
"""Bytes of the largest request body. A prompt of a million tokens is about 5 MB."""
MAX_QUEUE = 64
"""Requests of one model that may wait beyond those that run."""
KEEPALIVE_S = 10.0
"""Silence after which a stream says that it is alive; half of the shortest usual idle timeout, 20 s."""
BODY_TIMEOUT_S = 60.0
"""How long a client may take to send its request."""
STALLED_AFTER_S = 60.0
"""Seconds without a sign from a step engine that has work, after which /health calls it stalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`idle_unload` and `drain_timeout` in seconds; `idle_unload` 0 = never; `max_concurrency` None = what
    the engine can do. `keys` empty = no key is asked for."""

    host: str = "127.0.0.1"
    port: int = 52415
    keys: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_concurrency: int | None = None
    max_queue: int = MAX_QUEUE
    max_body: int = MAX_BODY
    idle_unload: float = 0.0
    drain_timeout: float = 10.0
    keepalive: float = KEEPALIVE_S
    log_format: Literal["text", "json"] = "text"
    log_prompts: bool = False
    debug: bool = False
