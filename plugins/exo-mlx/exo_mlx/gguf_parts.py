"""A GGUF model that may lie in several files, `NAME-00001-of-00003.gguf`, read as one.

The names and the keys `split.*` are those of llama.cpp's gguf-split: the first part has the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from exocli import ModelBroken
from numpy.typing import NDArray

from exo_mlx.gguf_file import GGUFFile, Tensor

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def parts(path: Path) -> list[Path]:
    """The files of the model that `path` is part of, in order: itself alone if its name has no number."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    return [path.with_name(f"{match[1]}-{n:05d}-of-{match[3]}.gguf") for n in range(1, int(match[3]) + 1)]


def stem(path: Path) -> str:
    """The file's name without its number and ending."""
    match = _PART.fullmatch(path.name)
    return match[1] if match else path.stem


class GGUFModel:
    """An open model: `metadata` of the first file, `tensors` of all; a context manager.

    Raises ModelNotFound or ModelBroken, naming the file: one that is missing, or that is damaged.
    """

    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]

    def __init__(self, path: Path) -> None:
        files = parts(path)
        missing = [file.name for file in files if not file.is_file()]
        if missing and path.is_file():
            raise ModelBroken(
                f"{path} is one of {len(files)} parts, and {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} not beside it: fetch all of them."
            )
        self.path = path
        with ExitStack() as stack:
            opened = [stack.enter_context(GGUFFile(file)) for file in files]
            self._owner = {tensor.name: file for file in opened for tensor in file.tensors}
            self.metadata = opened[0].metadata
            self.tensors = tuple(tensor for file in opened for tensor in file.tensors)
            self._check(files)
            self._stack = stack.pop_all()

    def _check(self, files: list[Path]) -> None:
        count = int(self.metadata.get("split.count", 0)) or 1
        if count != len(files):
            raise ModelBroken(
                f"{self.path} is one of {count} parts, but its name does not say which "
                f"(NAME-00001-of-{count:05d}.gguf): give the parts their names back."
            )
        promised = self.metadata.get("split.tensors.count", len(self.tensors))
        if len(self._owner) != len(self.tensors) or promised != len(self.tensors):
            raise ModelBroken(
                f"{self.path} has {len(self._owner)} of {promised} tensors: its parts do not belong together."
            )

    def __enter__(self) -> GGUFModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def data(self, tensor: Tensor, first: int = 0, rows: int | None = None) -> NDArray[np.uint8]:
        """See GGUFFile.data."""
        return self._owner[tensor.name].data(tensor, first, rows)
