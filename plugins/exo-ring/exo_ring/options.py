"""What `-o` and `[backends.ring]` accept, beyond what the `mlx` backend takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exo_mlx.options import Options as MlxOptions

DEFAULT_LAUNCHER = "ssh {host}"
DEFAULT_RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(MlxOptions):
    """`ranks`: so many on this machine. `hostfile`: instead, one rank on each host of MLX's hostfile JSON.
    `launcher`: the command prefix for a host that is not this machine, `{host}` filled in; `remote_python`:
    the interpreter there (default: this one's path). `port`: the first port of a hostfile's ring. `strategy`:
    who holds what; `auto` says why. `split`: layers a rank, instead of by memory. `connect_timeout`: seconds
    until every rank must have met its neighbours. `stall_timeout`: seconds without a finished step after
    which the ring is given up, 0 = never, None = from the usual step."""

    ranks: int | None = None
    hostfile: str | None = None
    launcher: str = DEFAULT_LAUNCHER
    remote_python: str | None = None
    port: int = 32323
    strategy: Literal["auto", "tensor", "pipeline"] = "auto"
    split: tuple[int, ...] | None = None
    connect_timeout: float = 20.0
    stall_timeout: float | None = None

    def __post_init__(self) -> None:
        MlxOptions.__post_init__(self)
        if self.ranks is not None and self.ranks < 2:
            raise ValueError("The option ranks must be at least 2; one rank is the backend mlx.")
        if self.ranks is not None and self.hostfile is not None:
            raise ValueError("Give either ranks or hostfile: a hostfile has one rank a host.")
        if "{host}" not in self.launcher:
            raise ValueError(f'The option launcher must name {{host}}, as in "{DEFAULT_LAUNCHER}".')
        if not 1024 <= self.port <= 65000:
            raise ValueError(f"The option port must be from 1024 to 65000, not {self.port}.")
        if self.connect_timeout <= 0:
            raise ValueError("The option connect_timeout must be more than 0 seconds.")
        if self.stall_timeout is not None and self.stall_timeout < 0:
            raise ValueError("The option stall_timeout must not be negative; 0 turns it off.")
        if self.split is not None and any(count < 1 for count in self.split):
            raise ValueError("Every rank needs at least one layer: correct the option split.")
        if self.split is not None and self.strategy == "tensor":
            raise ValueError("split divides layers between ranks; strategy=tensor divides each of them.")
