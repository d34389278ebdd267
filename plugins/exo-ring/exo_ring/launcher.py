"""How the ranks of a ring are started: a WorkerSpec each, from options alone. Starts nothing itself.

Runs in the program that the user started; imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
import shlex
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from exocli import ModelRef, OutOfMemory, WorkerSpec

from exo_mlx import memory, models
from exo_ring import hostfile, model_files, plan
from exo_ring.hostfile import Host
from exo_ring.options import DEFAULT_LAUNCHER, DEFAULT_RANKS, Options

THIS_MACHINE = "this machine"
_ROUNDS = 16
"""So many blocks of ports are used in turn: a rank of the last ring that is stopped, or behind a cut
link, still holds its ports when the next ring starts."""
_rings = itertools.count()


def launch(ref: ModelRef, options: Options) -> Sequence[WorkerSpec]:
    """`BackendSpec.launch`. Raises UsageError for a hostfile that cannot be used, and for what the model
    cannot do on so many ranks, before anything is started."""
    if options.hostfile is None:
        size = options.ranks or DEFAULT_RANKS
        _refuse_early(ref, options, size)
        _check_room(options, size)
        return _local(ref, size)
    found = hostfile.read(Path(options.hostfile).expanduser())
    _refuse_early(ref, options, len(found.hosts))
    per_rank = len(found.hosts[0].ips)
    block = per_rank * len(found.hosts)
    base = options.port + (next(_rings) % _ROUNDS) * block
    ports = itertools.count(base)
    seats = [{"host": host.name, "addresses": [[ip, next(ports)] for ip in host.ips]} for host in found.hosts]
    here = sum(is_here(host, options.launcher) for host in found.hosts)
    specs = []
    for rank, host in enumerate(found.hosts):
        local = is_here(host, options.launcher)
        specs.append(
            WorkerSpec(
                rank=rank,
                prefix=() if local else prefix(options.launcher, host.name),
                env=found.env,
                python=None if local else options.remote_python,
                host=host.name,
                data=_data(ref, rank, seats, here if local else 1),
            )
        )
    return _same_ring(specs)


def _refuse_early(ref: ModelRef, options: Options, size: int) -> None:
    """A model that is not here, or not in a folder, is judged by the ranks."""
    folder = models.source().locate(ref)
    if folder is not None and folder.is_dir():
        shape = model_files.read_shape(folder)
        plan.refuse(shape, size, strategy=options.strategy, split=options.split, name=folder.name)


def _check_room(options: Options, size: int) -> None:
    """Python and the libraries alone, for so many ranks on this machine. Raises OutOfMemory."""
    free, needed = memory.available(), size * plan.OVERHEAD
    if free is not None and free < needed and not options.force:
        raise OutOfMemory(
            f"{size} ranks on this machine need {memory.human(needed)} of memory before any weights, and "
            f"{memory.human(free)} are free: use fewer ranks.",
            needed=needed,
            available=free,
        )


def _local(ref: ModelRef, size: int) -> Sequence[WorkerSpec]:
    seats = [{"host": THIS_MACHINE, "addresses": [["127.0.0.1", port]]} for port in _free_ports(size)]
    return _same_ring(
        [WorkerSpec(rank=rank, host=THIS_MACHINE, data=_data(ref, rank, seats, size)) for rank in range(size)]
    )


def _data(ref: ModelRef, rank: int, seats: list[dict[str, Any]], local_ranks: int) -> dict[str, Any]:
    model = {"kind": ref.kind, "name": ref.name, "revision": ref.revision}
    return {"rank": rank, "seats": seats, "local_ranks": local_ranks, "ref": model}


def _same_ring(specs: Sequence[WorkerSpec]) -> list[WorkerSpec]:
    """One nonce for all, so that ranks of two rings do not take each other for their own; `view` sums up
    what every rank was told."""
    nonce = secrets.token_hex(8)
    seats = json.dumps(specs[0].data["seats"])
    view = hashlib.sha256(f"{nonce} {seats}".encode()).hexdigest()[:16]
    return [_with_data(spec, {"nonce": nonce, "view": view}) for spec in specs]


def _with_data(spec: WorkerSpec, more: Mapping[str, Any]) -> WorkerSpec:
    return WorkerSpec(
        rank=spec.rank,
        prefix=spec.prefix,
        env=spec.env,
        python=spec.python,
        host=spec.host,
        data={**spec.data, **more},
    )


def prefix(launcher: str, host: str) -> tuple[str, ...]:
    """The launcher template's words with `{host}` filled in: `ssh {host}` → ("ssh", "host")."""
    return tuple(word.replace("{host}", host) for word in shlex.split(launcher))


def is_here(host: Host, launcher: str) -> bool:
    """A host that needs no launcher. A launcher of one's own is used for every host: a namespace or a
    container may have this machine's name."""
    if launcher != DEFAULT_LAUNCHER:
        return False
    own = socket.gethostname()
    return host.name in ("localhost", "127.0.0.1", own, own.split(".")[0], f"{own.split('.')[0]}.local")


def _free_ports(count: int) -> list[int]:
    """Ports that are free at this moment. All are held until the last is found, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
