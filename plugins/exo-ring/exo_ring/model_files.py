"""What a rank can say of a model from its files, without loading it: sizes and a fingerprint.

The safetensors format: 8 bytes of header length (little-endian), a JSON header, then the tensors
(huggingface/safetensors README). Imports neither mlx nor mlx-lm.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exocli import ModelBroken

from exo_ring.shape import Shape, shape_from

_SAMPLES = 16
_SAMPLE = 1 << 14
_NAMED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


def read_config(folder: Path) -> dict[str, Any]:
    """config.json; raises ModelBroken."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelBroken(f"The config.json of {folder} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ModelBroken(f"The config.json of {folder} is not an object.")
    return config


def read_shape(folder: Path) -> Shape:
    """Raises ModelBroken."""
    config = read_config(folder)
    return shape_from(config, _tensors(folder, config))


def fingerprint(folder: Path) -> str:
    """Equal for equal models: the small files whole, of the weights the headers, the sizes and samples
    of each file. Reading all of a large model at every start would take longer than loading it."""
    total = hashlib.sha256()
    for name in _NAMED:
        path = folder / name
        if path.is_file():
            total.update(name.encode() + hashlib.sha256(path.read_bytes()).digest())
    for path in _weight_files(folder):
        size = path.stat().st_size
        total.update(f"{path.name} {size}".encode())
        total.update(_header_bytes(path))
        with path.open("rb") as file:
            for sample in range(_SAMPLES):
                file.seek(max(0, (size - _SAMPLE) * sample // (_SAMPLES - 1)))
                total.update(file.read(_SAMPLE))
    return total.hexdigest()[:32]


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelBroken(f"There are no weights (model*.safetensors) in {folder}.")
    return files


def _header_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length < 1 << 28 else b""
    except OSError as error:
        raise ModelBroken(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(header) != length or length == 0:
        raise ModelBroken(f"{path} is not a whole safetensors file.")
    return header


def _tensors(folder: Path, config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """{name: (bytes stored, parameters)}; a packed weight counts the parameters it stands for, its scales
    and biases none."""
    shapes: dict[str, tuple[str, list[int]]] = {}
    for path in _weight_files(folder):
        try:
            header = json.loads(_header_bytes(path))
            for name, entry in header.items():
                if name != "__metadata__":
                    shapes[name] = (entry["dtype"], entry["shape"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelBroken(f"{path} is not a safetensors file: its header cannot be read.") from error
    quantization = config.get("quantization") or config.get("quantization_config") or {}
    found = {}
    for name, (dtype, shape) in shapes.items():
        count = math.prod(shape)
        owner, _, part = name.rpartition(".")
        parameters = count
        if f"{owner}.scales" in shapes:
            own = quantization.get(owner)
            bits = int((own if isinstance(own, Mapping) else quantization).get("bits", 4))
            parameters = {"weight": count * 32 // bits, "bias": count}.get(part, 0)
        found[name] = (count * _BYTES.get(dtype, 1), parameters)
    return found
