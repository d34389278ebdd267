"""Who holds what: tensor or pipeline, which layers on which rank, how much memory each needs.

Pure: every rank computes the plan for itself from the same facts and gets the same one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from exocli import OutOfMemory, UsageError

from exo_ring.shape import Shape

OVERHEAD = 320 * 1024**2
"""Bytes that a rank needs beside weights and KV: Python, the libraries, the tokenizer, one chunk."""
TIGHT = 0.7
"""Share of a machine's memory above which embedding and head count when layers are divided."""
NEAR_S = 0.3e-3
"""A message between neighbours faster than this lets tensor parallelism pay: it waits for two sums a
layer, a pipeline for one message a stage."""
PIPELINE_KINDS = ("gemma3", "gemma3_text", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
"""The `model_type`s that can be split by layers: each is tested against one rank, cut at odd places."""
TENSOR_KINDS = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
"""The `model_type`s that mlx-lm shards and the tests try."""

Strategy = Literal["tensor", "pipeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a rank's machine has. `total` and `available` are bytes of memory of the whole machine (None =
    unknown), `ranks` how many ranks share it; `float32`: weights are written out in that on this rank;
    `latency_s`: one way to the next rank."""

    host: str
    total: int | None
    available: int | None
    cores: int
    ranks: int
    float32: bool
    latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's part: the layers `[start, stop)`, the bytes of its weights, and what it needs at the most
    while it loads."""

    rank: int
    host: str
    start: int
    stop: int
    weight_bytes: int
    kv_bytes_per_token: int
    needed: int
    available: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`wire`: the dtype of hidden states between ranks. `why`: one sentence for a person."""

    strategy: Strategy
    why: str
    wire: str
    shares: tuple[Share, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def digest(self) -> str:
        """The same on every rank, or the ranks do not have the same plan. Free memory is left out: it
        changes while the ranks look at it."""
        parts = [self.strategy, self.wire, *((s.start, s.stop) for s in self.shares)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def make(
    shape: Shape,
    machines: Sequence[Machine],
    *,
    strategy: Literal["auto", "tensor", "pipeline"] = "auto",
    split: Sequence[int] | None = None,
    wire: str = "float32",
    name: str = "the model",
) -> Plan:
    """Raises UsageError for what cannot be. Memory is for `check_memory`."""
    size = len(machines)
    refuse(shape, size, strategy=strategy, split=split, name=name)
    against = why_not_tensor(shape, size)
    if strategy == "tensor":
        return _plan("tensor", "Tensor parallel, as asked for.", shape, machines, None, wire)
    if strategy == "auto" and split is None:
        against = against or _slow_together(machines)
        if against is None:
            why = "Tensor parallel: its heads divide and the neighbours are near."
            return _plan("tensor", why, shape, machines, None, wire)
        why = f"Pipeline, since for tensor parallelism {against}."
    else:
        why = "Pipeline, since a split was given." if strategy == "auto" else "Pipeline, as asked for."
    if shape.kind not in PIPELINE_KINDS:
        kinds = ", ".join(PIPELINE_KINDS)
        raise UsageError(f'The ring cannot split a "{shape.kind}" model by layers; it can split {kinds}.')
    counts = list(split) if split is not None else by_memory(shape, machines)
    return _plan("pipeline", why, shape, machines, counts, wire)


def refuse(
    shape: Shape,
    size: int,
    *,
    strategy: Literal["auto", "tensor", "pipeline"],
    split: Sequence[int] | None,
    name: str,
) -> None:
    """Raises UsageError for what cannot be on `size` ranks whatever the machines are."""
    against = why_not_tensor(shape, size)
    if strategy == "tensor" and against is not None:
        raise UsageError(
            f"{name} cannot run tensor parallel on {size} ranks: {against}; use strategy=pipeline."
        )
    if shape.kind not in PIPELINE_KINDS and against is not None:
        kinds = ", ".join(PIPELINE_KINDS)
        text = f'The ring cannot split a "{shape.kind}" model by layers (it can split {kinds}), '
        raise UsageError(f"{text}and for tensor parallelism {against}.")
    layers = len(shape.layers)
    if size > layers and against is not None:
        raise UsageError(f"{name} has {layers} layers, which {size} ranks cannot share: use fewer ranks.")
    if split is not None:
        text = ",".join(str(count) for count in split)
        if len(split) != size:
            raise UsageError(f"split={text} names {len(split)} ranks; the ring has {size}.")
        if sum(split) != layers:
            raise UsageError(f"split={text} adds up to {sum(split)} layers; {name} has {layers}.")


def why_not_tensor(shape: Shape, size: int) -> str | None:
    """What keeps the model's layers from being divided by `size`; None = nothing."""
    if shape.kind not in TENSOR_KINDS:
        return f'mlx-lm does not divide the layers of a "{shape.kind}" model'
    if shape.heads % size or shape.kv_heads % size:
        return f"{shape.heads} attention heads and {shape.kv_heads} KV heads do not divide by {size}"
    unit = size * (shape.group_size or 1)
    if shape.intermediate % unit:
        return f"its inner width {shape.intermediate} does not divide by {unit}"
    return None


def _slow_together(machines: Sequence[Machine]) -> str | None:
    for machine in machines:
        if machine.ranks > machine.cores:
            return f"{machine.ranks} ranks share {machine.cores} cores on {machine.host}"
    times = [m.latency_s for m in machines if m.latency_s is not None]
    if len(times) < len(machines):
        return "the time between the neighbours is not known"
    if max(times) > NEAR_S:
        return f"a message between neighbours takes {max(times) * 1000:.1f} ms"
    return None


def by_memory(shape: Shape, machines: Sequence[Machine]) -> list[int]:
    """Layers a rank, in order, in proportion to the memory of the machines; every rank gets at least one.
    Raises UsageError for more ranks than layers.

    Embedding and head take memory and hardly any time, so they count only where memory is tight. Goes by
    a machine's whole memory, not what is free: the same machines give the same split every day.
    """
    count, size = len(shape.layers), len(machines)
    if size > count:
        raise UsageError(f"The model has {count} layers, which {size} ranks cannot share: use fewer ranks.")
    known = [m.total / m.ranks for m in machines if m.total]
    room = [m.total / m.ranks if m.total else (sum(known) / len(known) if known else 1.0) for m in machines]

    def layers_alone(rank: int, start: int, stop: int) -> float:
        return sum(_bytes(layer, machines[rank]) for layer in shape.layers[start:stop]) / room[rank]

    def everything(rank: int, start: int, stop: int) -> float:
        return _weights(shape, machines[rank], rank, size, start, stop) / room[rank]

    counts = _balanced(count, size, layers_alone)
    stops = list(itertools.accumulate(counts))
    fullest = max(
        everything(r, stop - n, stop) for r, (n, stop) in enumerate(zip(counts, stops, strict=True))
    )
    return counts if fullest <= TIGHT and known else _balanced(count, size, everything)


def _balanced(count: int, size: int, load: Callable[[int, int, int], float]) -> list[int]:
    """`count` layers in `size` runs such that the largest load(rank, start, stop) is as small as can be."""
    # best[k]: (load of the fullest, split so far) for the first k layers on the ranks seen so far
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for rank in range(size):
        after = size - rank - 1
        found: dict[int, tuple[float, list[int]]] = {}
        for start, (fullest, counts) in best.items():
            for stop in range(start + 1, count - after + 1) if after else [count]:
                candidate = max(fullest, load(rank, start, stop))
                if stop not in found or candidate < found[stop][0]:
                    found[stop] = (candidate, [*counts, stop - start])
        best = found
    return best[count][1]


def _bytes(pair: tuple[int, int], machine: Machine) -> int:
    stored, parameters = pair
    return parameters * 4 if machine.float32 else stored


def _weights(shape: Shape, machine: Machine, rank: int, size: int, start: int, stop: int) -> int:
    tied = shape.head == (0, 0)
    parts = list(shape.layers[start:stop])
    if rank == 0:
        parts.append(shape.embedding)
    if rank == size - 1 and not (tied and rank == 0):
        parts.append(shape.embedding if tied else shape.head)
    return sum(_bytes(part, machine) for part in parts)


def _plan(
    strategy: Strategy,
    why: str,
    shape: Shape,
    machines: Sequence[Machine],
    counts: Sequence[int] | None,
    wire: str,
) -> Plan:
    size = len(machines)
    shares = []
    start = 0
    for rank, machine in enumerate(machines):
        value = 4 if machine.float32 else 2
        if counts is None:
            begin, stop = 0, len(shape.layers)
            layers = sum(_bytes(layer, machine) for layer in shape.layers)
            ends = _bytes(shape.embedding, machine) + _bytes(shape.head, machine)
            weights = layers // size + ends
            # Written out in float32, the layers have to be there whole before they are divided.
            needed = layers + ends if machine.float32 else weights
            kv = shape.kv_values * len(shape.layers) * value // size
        else:
            begin, stop = start, start + counts[rank]
            needed = weights = _weights(shape, machine, rank, size, begin, stop)
            kv = shape.kv_values * counts[rank] * value
        start = stop
        shares.append(
            Share(
                rank=rank,
                host=machine.host,
                start=begin,
                stop=stop,
                weight_bytes=weights,
                kv_bytes_per_token=kv,
                needed=needed + OVERHEAD,
                available=machine.available,
            )
        )
    return Plan(strategy=strategy, why=why, wire=wire, shares=tuple(shares))


def check_memory(plan: Plan, name: str) -> None:
    """Raises OutOfMemory naming rank, host and numbers where the ranks of a machine do not fit into it."""
    needed: dict[str, int] = {}
    free: dict[str, int] = {}
    ranks: dict[str, list[int]] = {}
    for share in plan.shares:
        needed[share.host] = needed.get(share.host, 0) + share.needed
        ranks.setdefault(share.host, []).append(share.rank)
        if share.available is not None:
            free[share.host] = min(share.available, free.get(share.host, share.available))
    for host, have in free.items():
        if needed[host] > have:
            who = (
                f"rank {ranks[host][0]}"
                if len(ranks[host]) == 1
                else f"ranks {ranks[host][0]}-{ranks[host][-1]}"
            )
            raise OutOfMemory(
                f"{name} needs {_gb(needed[host])} for {who} on {host}, where {_gb(have)} are free: give "
                "it fewer layers with split=, add a machine, or load it all the same with --force.",
                rank=ranks[host][0],
                host=host,
                needed=needed[host],
                available=have,
            )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
