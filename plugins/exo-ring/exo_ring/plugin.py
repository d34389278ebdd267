"""What the `ring` backend tells exo about itself. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from exocli import BackendSpec, CommandSpec, hookimpl

from exo_mlx.plugin import CAPABILITIES


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
        probe="exo_mlx.probe:probe",
        baseline="exo_ring.baseline:open_bare",
        models="exo_mlx.models:source",
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
