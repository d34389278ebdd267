"""Who holds what: tensor or pipeline, which layers on which rank, how much memory each needs.

Pure: every rank computes the plan for itself from the same facts and gets the same one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from exocli import OutOfMemory, Unsupported, UsageError

OVERHEAD = 320 * 1024**2
"""Bytes that a rank needs beside weights and KV: Python, the libraries, the tokenizer, one chunk."""
NEAR_S = 0.3e-3
"""A message between neighbours faster than this lets tensor parallelism pay: it waits for two sums a
layer, a pipeline for one message a stage."""
TENSOR_KINDS = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
"""The `model_type`s that mlx-lm shards and the tests try."""

Strategy = Literal["tensor", "pipeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's sizes in bytes as stored and in parameters: of each layer, of the embedding and of the
    head (0, 0 = tied to the embedding). `kv_values`: numbers that a token adds to the KV cache, a layer."""

    kind: str
    layers: tuple[tuple[int, int], ...]
    embedding: tuple[int, int]
    head: tuple[int, int]
    heads: int
    kv_heads: int
    intermediate: int
    group_size: int | None
    kv_values: int


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
    """One rank's part: the layers `[start, stop)`, the bytes of its weights and of everything."""

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
    """Raises UsageError for a split that does not fit the model, Unsupported for tensor parallelism where
    it cannot be. Memory is for `check_memory`."""
    size = len(machines)
    against = why_not_tensor(shape, size)
    if strategy == "tensor":
        if against is not None:
            raise Unsupported(
                f"{name} cannot run tensor parallel on {size} ranks: {against}; use strategy=pipeline."
            )
        return _plan("tensor", "strategy=tensor was asked for.", shape, machines, None, wire)
    if strategy == "auto" and split is None:
        against = against or _slow_together(machines)
        if against is None:
            why = "Tensor parallel: its heads divide and the neighbours are near."
            return _plan("tensor", why, shape, machines, None, wire)
        why = f"Pipeline, since for tensor parallelism {against}."
    else:
        why = (
            "Pipeline, since a split was given." if strategy == "auto" else "strategy=pipeline was asked for."
        )
    counts = _checked(split, shape, size) if split is not None else by_memory(shape, machines)
    return _plan("pipeline", why, shape, machines, counts, wire)


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


def _checked(split: Sequence[int], shape: Shape, size: int) -> list[int]:
    text = ",".join(str(count) for count in split)
    if len(split) != size:
        raise UsageError(f"split={text} names {len(split)} ranks; the ring has {size}.")
    if sum(split) != len(shape.layers):
        raise UsageError(f"split={text} adds up to {sum(split)} layers; the model has {len(shape.layers)}.")
    return list(split)


def by_memory(shape: Shape, machines: Sequence[Machine]) -> list[int]:
    """Layers a rank, in order, so that the fullest rank is as empty as can be (bytes of weights over the
    machine's memory); every rank gets at least one. Raises UsageError for more ranks than layers.

    Goes by a machine's whole memory, not what is free: the same machines give the same split every day.
    """
    count, size = len(shape.layers), len(machines)
    if size > count:
        raise UsageError(f"The model has {count} layers, which {size} ranks cannot share.")
    known = [m.total / m.ranks for m in machines if m.total]
    room = [m.total / m.ranks if m.total else (sum(known) / len(known) if known else 1.0) for m in machines]

    def load(rank: int, start: int, stop: int) -> float:
        return _weights(shape, machines[rank], rank, size, start, stop) / room[rank]

    # best[k] = (load of the fullest, splits so far) for the first k layers on the ranks seen so far
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for rank in range(size):
        after = size - rank - 1
        found: dict[int, tuple[float, list[int]]] = {}
        for start, (fullest, counts) in best.items():
            stops = range(start + 1, count - after + 1) if after else [count]
            for stop in stops:
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
            weights = layers // size + _bytes(shape.embedding, machine) + _bytes(shape.head, machine)
            kv = shape.kv_values * len(shape.layers) * value // size
        else:
            begin, stop = start, start + counts[rank]
            weights = _weights(shape, machine, rank, size, begin, stop)
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
                needed=weights + OVERHEAD,
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
                "it fewer layers with split=, add a machine, or load it all the same with force=true.",
                rank=ranks[host][0],
                host=host,
                needed=needed[host],
                available=have,
            )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def shape_from(config: Mapping[str, Any], tensors: Mapping[str, tuple[int, int]]) -> Shape:
    """A Shape from config.json and {tensor name: (bytes stored, parameters)}. Raises Unsupported where
    the sizes that a plan needs are not in them."""
    text: Mapping[str, Any] = {**config, **config.get("text_config", {})}
    kind = str(config.get("model_type"))
    try:
        count = int(text["num_hidden_layers"])
        heads = int(text["num_attention_heads"])
        hidden = int(text["hidden_size"])
        kv_heads = int(text.get("num_key_value_heads") or heads)
        head_dim = int(text.get("head_dim") or hidden // heads)
        intermediate = int(text.get("moe_intermediate_size") or text["intermediate_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise Unsupported(f'The ring cannot plan a "{kind}" model: its config has no {error}.') from error
    layers = [[0, 0] for _ in range(count)]
    ends = {"embedding": [0, 0], "head": [0, 0]}
    for name, (stored, parameters) in tensors.items():
        _, found, rest = name.partition("layers.")
        number = rest.split(".")[0]
        if found and number.isdigit() and int(number) < count:
            entry = layers[int(number)]
        else:
            entry = ends["head" if "lm_head" in name else "embedding"]
        entry[0] += stored
        entry[1] += parameters
    quantization = config.get("quantization") or config.get("quantization_config") or {}
    group = quantization.get("group_size")
    return Shape(
        kind=kind,
        layers=tuple((a, b) for a, b in layers),
        embedding=(ends["embedding"][0], ends["embedding"][1]),
        head=(ends["head"][0], ends["head"][1]),
        heads=heads,
        kv_heads=kv_heads,
        intermediate=intermediate,
        group_size=int(group) if group else None,
        kv_values=2 * kv_heads * head_dim,
    )
