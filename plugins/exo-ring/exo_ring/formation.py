"""From "I am rank r" to a ring that works: meet, compare, plan, then MLX's own group, checked once.

Runs in each rank before its weights are read. Raises ExoErrors that name rank, host and the way out.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exocli import CancelToken, EngineFailed, ModelRef, OpenContext, Unavailable

from exo_mlx import models
from exo_ring import facts, lifeline, model_files, plan
from exo_ring.meeting import Meeting, Seat
from exo_ring.options import Options
from exo_ring.plan import Plan

_MLX_LISTENS_S = 0.05
"""The last rank connects first in MLX, the others listen first: it waits this long, since MLX answers a
refused connection with a whole second's pause."""


@dataclass(frozen=True, slots=True)
class Ring:
    """What a rank knows once the ring stands. `group` is MLX's."""

    group: Any
    plan: Plan
    folder: Path


def seats(data: Mapping[str, Any]) -> list[Seat]:
    return [
        Seat(seat["host"], tuple((ip, int(port)) for ip, port in seat["addresses"])) for seat in data["seats"]
    ]


def find_model(path: str | None, data: Mapping[str, Any], progress: Any, cancel: CancelToken) -> Path | None:
    """The model's folder on this machine: where rank 0 has it, or where this machine keeps it. None = it
    is not here. A GGUF file is converted first, as for one rank."""
    found = Path(path) if path and Path(path).exists() else models.source().locate(ModelRef(**data["ref"]))
    if found is not None and found.is_file():
        return models.gguf_folder(found, progress, cancel)
    return found


def form(context: OpenContext) -> Ring:
    """Meet the other ranks and agree on a plan. Raises Unavailable, Unsupported, UsageError, OutOfMemory,
    each the same sentence on every rank that can know it."""
    options: Options = context.options
    data = context.data
    name = Path(context.model).name
    folder = find_model(context.model, data, context.progress, context.cancel)
    mine = facts.collect(folder, data, options.cpu_dtype)
    everyone, agreed = agree_on_plan(mine, folder, data, options, name)
    if not options.force:
        plan.check_memory(agreed, name)
    assert folder is not None  # facts.check has refused a rank without the model
    if context.rank == 0:
        context.log(f"ring: {agreed.why} {[(s.start, s.stop) for s in agreed.shares]}")
    # Python cannot speak once MLX waits; this is the line that the parent quotes then.
    context.log(f"MLX's ring was not there after {options.connect_timeout:g} s.")
    group = _start_mlx(context.rank, seats(data), options.connect_timeout)
    context.log("MLX's ring stands.")
    verify(group, data["nonce"], agreed, everyone)
    return Ring(group, agreed, folder)


def agree_on_plan(
    mine: Mapping[str, Any], folder: Path | None, data: Mapping[str, Any], options: Options, name: str
) -> tuple[list[dict[str, Any]], Plan]:
    """Everyone's facts, and the plan that follows from them, the same on every rank."""
    with Meeting(data["rank"], seats(data), data["nonce"], options.connect_timeout) as meeting:
        everyone = meeting.gather({**mine, **meeting.measure()})
        places = meeting.seats
        for peer, connection in meeting.keep():
            lifeline.watch(connection, f"The way to rank {peer} on {places[peer].host} is dead")
    facts.check(everyone, name)
    assert folder is not None
    return everyone, make_plan(everyone, folder, options, name)


def make_plan(everyone: list[dict[str, Any]], folder: Path, options: Options, name: str) -> Plan:
    config = model_files.read_config(folder)
    machines = [facts.machine(each) for each in everyone]
    return plan.make(
        model_files.read_shape(folder),
        machines,
        strategy=options.strategy,
        split=options.split,
        wire=_wire(config, machines),
        name=name,
    )


def _wire(config: Mapping[str, Any], machines: list[plan.Machine]) -> str:
    """The dtype between ranks: that of the model, float32 where any rank computes in it."""
    text = {**config, **config.get("text_config", {})}
    own = str(text.get("dtype") or text.get("torch_dtype") or "float32")
    known = own if own in ("float16", "bfloat16") else "float32"
    return "float32" if any(machine.float32 for machine in machines) else known


def _start_mlx(rank: int, places: list[Seat], timeout: float) -> Any:
    """MLX's ring group. Its start holds Python's lock and has no deadline, so the kernel keeps the time:
    SIGALRM ends the process, and the parent names the rank."""
    import mlx.core as mx

    with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        json.dump([[f"{ip}:{port}" for ip, port in seat.addresses] for seat in places], hosts)
        hosts.flush()
        os.environ.update(MLX_RANK=str(rank), MLX_HOSTFILE=hosts.name)
        if rank == len(places) - 1:
            time.sleep(_MLX_LISTENS_S)
        signal.setitimer(signal.ITIMER_REAL, timeout)
        try:
            return mx.distributed.init(backend="ring", strict=True)
        except RuntimeError as error:
            raise Unavailable(
                f"Rank {rank} on {places[rank].host} cannot join MLX's ring: {error}."
            ) from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def verify(group: Any, nonce: str, agreed: Plan, everyone: list[dict[str, Any]]) -> None:
    """The first exchange over MLX: every rank's sum of (nonce, plan, facts) must be its neighbour's."""
    import mlx.core as mx

    told = [nonce, agreed.digest(), *(each["model"] for each in everyone)]
    mine = int.from_bytes(hashlib.sha256(json.dumps(told).encode()).digest()[:7], "big")
    with mx.stream(mx.default_stream(mx.default_device())):
        found: Any = mx.distributed.all_gather(mx.array([mine], dtype=mx.int64), group=group).tolist()
    if any(value != mine for value in found):
        raise EngineFailed(
            f"Rank {group.rank()} is connected to a rank of another ring or with another plan: start again."
        )
