"""What the `ring` backend tells exo about itself. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from exocli import Availability, BackendSpec, CommandSpec, hookimpl

from exo_mlx.plugin import CAPABILITIES

RANK = 10
"""A ring is asked for by name: where one machine does, it is the better choice."""


def probe() -> Availability:
    """Usable where the backend mlx is."""
    from exo_mlx import probe as mlx_probe

    return replace(mlx_probe.probe(), rank=RANK)


@hookimpl
def exo_backends() -> Iterable[BackendSpec]:
    yield BackendSpec(
        name="ring",
        summary="One model on several ranks, on this machine or on many, over MLX's own ring",
        api=1,
        protocol="step",
        place="worker",
        open="exo_ring.opening:open_engine",
        open_options="exo_ring.options:Options",
        probe="exo_ring.plugin:probe",
        baseline="exo_ring.baseline:open_bare",
        variants="exo_ring.variants:variants",
        figures="exo_ring.figures:open_engine",
        models="exo_ring.models:source",
        launch="exo_ring.launcher:launch",
        capabilities=CAPABILITIES,
    )


@hookimpl
def exo_commands() -> Iterable[CommandSpec]:
    yield CommandSpec(
        name="ring",
        help="Check a ring of machines, or show who would hold what.",
        command="exo_ring.commands:ring",
    )
