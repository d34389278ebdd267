"""What the `mlx` backend tells exo about itself. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from exocli import BackendSpec, Capabilities, hookimpl

CAPABILITIES = Capabilities(
    tasks=("chat", "complete"),
    max_concurrency=8,
    logprobs=True,
    seed=True,
    continue_last=True,
    cancel_prefill="chunk",
    cancel_decode="token",
    kv_on_cancel="kept",
)


@hookimpl
def exo_backends() -> Iterable[BackendSpec]:
    yield BackendSpec(
        name="mlx",
        summary="MLX on this machine, in a worker process",
        api=1,
        protocol="step",
        place="worker",
        open="exo_mlx.opening:open_engine",
        open_options="exo_mlx.options:Options",
        probe="exo_mlx.probe:probe",
        doctor="exo_mlx.probe:checks",
        baseline="exo_mlx.baseline:open_bare",
        models="exo_mlx.models:source",
        capabilities=CAPABILITIES,
    )
