"""What the `mlx` backend tells exo about itself. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from exocli import BackendSpec, Capabilities, Variant, hookimpl

CAPABILITIES = Capabilities(
    tasks=("chat", "complete"),
    max_concurrency=8,
    tools=True,
    logprobs=True,
    seed=True,
    schema=True,
    penalties=True,
    continue_last=True,
    cancel_prefill="chunk",
    cancel_decode="token",
    kv_on_cancel="kept",
)
"""Of a model that writes."""
EMBEDDING_CAPABILITIES = Capabilities(
    tasks=("embed",), max_concurrency=CAPABILITIES.max_concurrency, cancel_prefill="chunk"
)
"""Of a model that makes embeddings. A cancel is seen between batches of texts."""


def variants(options: Any, facts: Mapping[str, Any]) -> Iterable[Variant]:
    """What `exo bench` compares."""
    yield Variant(name="lookup", options={"speculate": "lookup"})


@hookimpl
def exo_backends() -> Iterable[BackendSpec]:
    yield BackendSpec(
        name="mlx",
        summary="MLX on this machine, in a worker process",
        api=1,
        protocol="step",
        place="worker",
        open="exo_mlx.opening:open_engine",
        open_options="exo_mlx.options:LocalOptions",
        probe="exo_mlx.probe:probe",
        doctor="exo_mlx.probe:checks",
        baseline="exo_mlx.baseline:open_bare",
        variants="exo_mlx.plugin:variants",
        models="exo_mlx.models:source",
        capabilities=replace(CAPABILITIES, tasks=(*CAPABILITIES.tasks, *EMBEDDING_CAPABILITIES.tasks)),
    )
