"""What the `remote` backend tells exo about itself. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from exocli import BackendSpec, hookimpl

from exo_remote.dialects import UPPER_BOUND


@hookimpl
def exo_backends() -> Iterable[BackendSpec]:
    yield BackendSpec(
        name="remote",
        summary="A server that speaks OpenAI's or Ollama's API: -o url=http://host:port",
        api=1,
        protocol="stream",
        place="inline",
        open="exo_remote.opening:open_engine",
        open_options="exo_remote.options:Options",
        baseline="exo_remote.baseline:open_bare",
        catalog="exo_remote.models:catalog",
        capabilities=UPPER_BOUND,
    )
