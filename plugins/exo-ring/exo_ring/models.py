"""The models of the `ring` backend: those of `mlx` that write text. An embedding model is small enough for
one machine, and its layers are not split. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from exocli import ModelInfo, ModelRef, ModelSource

from exo_mlx.models import MlxModels, tasks
from exo_mlx.wheel import WHEELS


def source() -> ModelSource:
    """The backend's model source (`BackendSpec.models`)."""
    return RingModels()


_EMBEDDERS = frozenset(name for name, one in WHEELS.items() if one.embeds)


class RingModels(MlxModels):
    def models(self) -> Iterable[ModelInfo]:
        return (info for info in super().models() if info.tasks != ("embed",))

    def aliases(self) -> Mapping[str, str]:
        return {name: text for name, text in super().aliases().items() if name not in _EMBEDDERS}

    def accepts(self, ref: ModelRef) -> bool:
        path = self.locate(ref)
        embeds = tasks(path) == ("embed",) if path is not None else ref.name in _EMBEDDERS
        return super().accepts(ref) and not embeds
