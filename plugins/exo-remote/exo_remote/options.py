"""What `-o` and `[backends.remote]` accept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

DialectName = Literal["auto", "exo", "llama.cpp", "vllm", "sglang", "ollama", "lmstudio", "mlx-lm", "openai"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`url`: the server's, with or without /v1; default EXO_URL, else exo's own port on this machine.
    `dialect`: what the server is, where asking it is not enough. `connect_timeout`, `idle_timeout` in
    seconds: how long a connection may take, and how long a reply may stand still (heartbeats do not
    count; 0 = for ever). `retries`: further attempts to connect. `ca_file`: certificates (PEM) to trust
    beside the usual ones. `api_key`: from the config alone; EXO_REMOTE_API_KEY and the keyring are better
    places."""

    url: str = ""
    dialect: DialectName = "auto"
    connect_timeout: float = 5.0
    idle_timeout: float = 600.0
    retries: int = 2
    ca_file: str = ""
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.connect_timeout <= 0:
            raise ValueError("connect_timeout must be more than 0 seconds")
        if self.idle_timeout < 0:
            raise ValueError("idle_timeout must be a number of seconds, or 0 for none")
        if self.retries < 0:
            raise ValueError("retries must be 0 or more")
