"""Reads a GGUF file: its metadata and where its tensors lie. Format: ggml's docs/gguf.md, versions 2 and 3.

The `gguf` package's own reader takes seconds for a vocabulary and trusts the file; this one checks
every length against the file's end. Knows no architecture.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from exocli import ModelBroken, ModelNotFound
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """`shape` is rows first, as numpy has it (GGUF stores it the other way round); `kind` is `Q4_1` …;
    `offset` and `size` in bytes of the file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    size: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])


class GGUFFile:
    """An open GGUF file; a context manager. Raises ModelNotFound or ModelBroken."""

    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise ModelNotFound(f"There is no file {path}.") from error
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ModelBroken(f"{path} cannot be read: {error}.") from error
        self._at = 0
        try:
            self._parse()
        except ModelBroken:
            self.close()
            raise
        except (struct.error, UnicodeDecodeError, ValueError, KeyError, OverflowError) as error:
            self.close()
            raise ModelBroken(f"{path} is cut off or damaged: fetch it again.") from error

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._map.close()

    def data(self, tensor: Tensor, first: int = 0, rows: int | None = None) -> NDArray[np.uint8]:
        """The bytes of `rows` rows (None: all) from the `first` on, as (rows, bytes a row), copied out of
        the file."""
        width = tensor.size // tensor.rows
        last = tensor.rows if rows is None else min(tensor.rows, first + rows)
        raw = self._map[tensor.offset + first * width : tensor.offset + last * width]
        return np.frombuffer(raw, dtype=np.uint8).reshape(last - first, width)

    def _parse(self) -> None:
        if self._map[:4] != b"GGUF":
            raise ModelBroken(f"{self.path} is no GGUF file.")
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelBroken(f"{self.path} is a GGUF file of version {version}: 2 and 3 can be read.")
        tensors, pairs = self._scalar("Q"), self._scalar("Q")
        metadata = {}
        for _ in range(pairs):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        self.metadata = metadata
        infos = [self._tensor_info() for _ in range(tensors)]
        align = int(metadata.get("general.alignment", 32))
        start = -(-self._at // align) * align
        self.tensors = tuple(self._tensor(start, *info) for info in infos)

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._map, self._at)
        self._at += struct.calcsize(code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        if length > len(self._map) - self._at:
            raise ValueError("a string runs past the end")
        text = self._map[self._at : self._at + length].decode("utf-8")
        self._at += length
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        inner, count = self._scalar("I"), self._scalar("Q")
        if count > len(self._map) - self._at:
            raise ValueError("an array runs past the end")
        if inner not in _SCALARS:
            return [self._value(inner) for _ in range(count)]
        layout = f"<{count}{_SCALARS[inner]}"
        values = list(struct.unpack_from(layout, self._map, self._at))
        self._at += struct.calcsize(layout)
        return values

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dims = self._string(), self._scalar("I")
        if not 1 <= dims <= _MAX_DIMS:
            raise ValueError("dimensions")
        shape = tuple(self._scalar("Q") for _ in range(dims))[::-1]
        return name, shape, self._scalar("I"), self._scalar("Q")

    def _tensor(self, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
        try:
            known = GGMLQuantizationType(kind)
        except ValueError:
            raise ModelBroken(f"{self.path}: the tensor {name} is of an unknown type ({kind}).") from None
        block, block_size = GGML_QUANT_SIZES[known]
        elements = 1
        for length in shape:
            elements *= length
        size = elements // block * block_size
        if not elements or shape[-1] % block or start + offset + size > len(self._map):
            raise ModelBroken(f"{self.path} is cut off at the tensor {name}: fetch it again.")
        return Tensor(name=name, shape=shape, kind=known.name, offset=start + offset, size=size)
