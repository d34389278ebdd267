"""Converts a GGUF file into a model folder in mlx-lm's format, without requantizing.

An architecture is a `Family` (families.py). One that is not listed, a tensor type or a tensor that is not
known, or one that is missing, is refused by name before anything is written.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from exocli import CancelToken, ModelBroken, ProgressFn
from numpy.typing import NDArray

from exo_mlx import families, quants, tokenizer_gguf
from exo_mlx.families import Family
from exo_mlx.gguf_file import Tensor
from exo_mlx.gguf_parts import GGUFModel

_PLAIN = {"F32": ("F32", "<f4"), "F16": ("F16", "<f2"), "BF16": ("BF16", "<u2")}
"""GGUF type → safetensors type and how numpy reads it (bfloat16 is passed through as it is)."""
_ROWS_AT_ONCE = 1 << 24
"""Weights that are made dense at a time: the embedding of a large vocabulary would take gigabytes."""

_LAYER = re.compile(r"^blk\.(\d+)\.(\w+)\.(weight|bias)$")
_TOP = re.compile(r"^(\w+)\.(weight|bias)$")


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a tensor goes: mlx-lm's `module` and `leaf`; `heads` > 0 if its rows are to be unpermuted;
    `shifted` if GGUF holds it plus one."""

    tensor: Tensor
    module: str
    leaf: str
    heads: int
    shifted: bool

    @property
    def format(self) -> quants.Format | None:
        """How it is repacked; None for what is or becomes dense, as all vectors do."""
        return quants.FORMATS.get(self.tensor.kind) if len(self.tensor.shape) == 2 else None


Spec = tuple[str, str, tuple[int, ...]]
"""A tensor of the safetensors file: name, safetensors type, shape."""


def convert(
    source: Path,
    folder: Path,
    progress: ProgressFn = lambda done, total: None,
    cancel: CancelToken | None = None,
) -> None:
    """Write the model in `source` into the empty folder `folder`; `progress` in bytes of the source.

    Raises ModelNotFound, or ModelBroken (damaged, or not supported, by name) with nothing written;
    OSError where the disk refuses; Cancelled.
    """
    with GGUFModel(source) as file:
        try:
            targets, config = plan(file)
        except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
            raise ModelBroken(f"{source} lacks metadata that its architecture needs: {error}.") from error
        ends = tokenizer_gguf.end_tokens(file.metadata)
        tokenizer_config = tokenizer_gguf.write(file.metadata, folder, source)
        tokenizer_config["model_max_length"] = config["max_position_embeddings"]
        ids = {
            f"{name}_token_id": file.metadata[f"tokenizer.ggml.{key}_token_id"]
            for name, key in (("bos", "bos"), ("pad", "padding"))
            if f"tokenizer.ggml.{key}_token_id" in file.metadata
        }
        _write_json(folder / "tokenizer_config.json", tokenizer_config)
        _write_json(folder / "config.json", {**config, **ids, "eos_token_id": ends})
        _write_json(folder / "generation_config.json", {**ids, "eos_token_id": ends})
        _write_weights(file, targets, folder, progress, cancel or CancelToken())


def plan(file: GGUFModel) -> tuple[list[_Target], dict[str, Any]]:
    """Every tensor's target, and config.json; raises ModelBroken for what is not supported."""
    metadata, path = file.metadata, file.path
    arch = str(metadata.get("general.architecture"))
    family = families.FAMILIES.get(arch)
    if family is None:
        known = ", ".join(sorted(families.FAMILIES))
        raise ModelBroken(f'{path} is of the architecture "{arch}": {known} can be converted.')
    tokenizer_gguf.check(metadata, path)
    config = family.config(metadata, arch)
    families.check(metadata, arch, config, path)
    by_name = {tensor.name: tensor for tensor in file.tensors}
    for tensor in file.tensors:
        if tensor.kind not in (*_PLAIN, *quants.DENSE, *quants.FORMATS):
            raise ModelBroken(f"{path}: {tensor.name} is of the type {tensor.kind}, which is not supported.")
    rope = by_name.pop(families.ROPE_FACTORS, None)
    factors = None if rope is None else _dense(file, rope, 0, None)[0]
    scaling = families.rope_scaling(metadata, arch, factors, config, path)
    biased = _check_names(by_name, family, arch, config["num_hidden_layers"], path)
    targets = [_target(tensor, family, config, path) for tensor in by_name.values()]
    config = {
        "model_type": family.model_type,
        **config,
        **biased,
        **({"rope_scaling": scaling} if scaling else {}),
        "vocab_size": by_name["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in by_name,
        "torch_dtype": "float32",
    }
    quantized = {target.module: target.format.bits for target in targets if target.format}
    if quantized:
        usual = max(set(quantized.values()), key=list(quantized.values()).count)
        config["quantization"] = {"group_size": quants.GROUP, "bits": usual, "mode": "affine"} | {
            module: {"group_size": quants.GROUP, "bits": bits}
            for module, bits in sorted(quantized.items())
            if bits != usual
        }
    return targets, config


def _check_names(
    names: Collection[str], family: Family, arch: str, layers: int, path: Path
) -> dict[str, bool]:
    """Is every tensor there, and no other? Returns what config.json says of biases."""
    config: dict[str, bool] = {}
    wanted = {f"{name}.weight" for name in families.TOP if name != "output"}
    inner = {f"{name}.weight" for name in family.layer}
    for key, owners in family.biases:
        there = key is None or any(f"blk.0.{name}.bias" in names for name in owners)
        inner |= {f"{name}.bias" for name in owners} if there else set()
        if key is not None and there:
            config[key] = True
    layers = min(layers, len(names))  # a damaged number may be huge; of a layer too many something is missing
    wanted |= {f"blk.{layer}.{name}" for layer in range(layers) for name in inner}
    for name in names:
        if name not in wanted and name != "output.weight":
            raise ModelBroken(f"{path} has the tensor {name}, which {arch} is not known to have.")
    for name in sorted(wanted):
        if name not in names:
            raise ModelBroken(f"{path} lacks the tensor {name}, which {arch} models have.")
    return config


def _target(tensor: Tensor, family: Family, config: Mapping[str, Any], path: Path) -> _Target:
    layer, top = _LAYER.match(tensor.name), _TOP.match(tensor.name)
    if layer:
        module, leaf, key = f"model.layers.{layer[1]}.{family.layer[layer[2]]}", layer[3], layer[2]
    else:
        assert top is not None  # _check_names knows the name
        module, leaf, key = families.TOP[top[1]], top[2], top[1]
    counted = family.permuted.get(key)
    heads = int(config[counted]) if counted else 0
    if heads and tensor.shape[0] % (2 * heads):
        raise ModelBroken(f"{path}: {tensor.name} does not divide into {heads} heads.")
    return _Target(tensor, module, leaf, heads, key in family.shifted)


# --------------------------------------------------------------------------------------------- weights


def _specs(target: _Target) -> list[Spec]:
    """What `_arrays` will give, before any of it is read."""
    tensor, name = target.tensor, f"{target.module}.{target.leaf}"
    if target.format is None:
        plain = _PLAIN.get(tensor.kind) if not target.shifted else None
        return [(name, plain[0] if plain else "F32", tensor.shape)]
    rows, columns = tensor.shape
    groups = (rows, columns // quants.GROUP)
    return [
        (name, "U32", (rows, columns * target.format.bits // 32)),
        (f"{target.module}.scales", "F32", groups),
        (f"{target.module}.biases", "F32", groups),
    ]


def _arrays(file: GGUFModel, target: _Target) -> Iterator[np.ndarray[Any, Any]]:
    """The tensor's values, one array after the other as they lie in the file; a dense one in pieces."""
    tensor = target.tensor
    if target.format is not None:
        packed = quants.repack(file.data(tensor), target.format)
        for array in (packed.weight, packed.scales, packed.biases):
            yield _unpermute(array, target.heads)
        return
    rows = tensor.rows if target.heads else max(1, _ROWS_AT_ONCE // tensor.shape[-1])
    for first in range(0, tensor.rows, rows):
        if tensor.kind in _PLAIN and not target.shifted:
            piece: NDArray[Any] = file.data(tensor, first, rows).view(_PLAIN[tensor.kind][1])
        else:
            piece = _dense(file, tensor, first, rows) - np.float32(target.shifted)
        yield _unpermute(piece.reshape(-1, *tensor.shape[1:]), target.heads)


def _dense(file: GGUFModel, tensor: Tensor, first: int, rows: int | None) -> NDArray[np.float32]:
    """Rows of the tensor in float32, as (rows, columns)."""
    from gguf import GGMLQuantizationType, dequantize

    data, kind = file.data(tensor, first, rows), GGMLQuantizationType[tensor.kind]
    if tensor.kind in ("F32", "F16"):  # the package wants these in their own type
        data = data.view(_PLAIN[tensor.kind][1])
    dense: NDArray[np.float32] = dequantize(data, kind)
    return dense


def _unpermute(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """GGUF has the two halves of a head's rotary pairs interleaved; mlx-lm has one after the other."""
    if not heads:
        return array
    pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


_ITEM = {"F32": 4, "U32": 4, "F16": 2, "BF16": 2}


def _write_weights(
    file: GGUFModel, targets: list[_Target], folder: Path, progress: ProgressFn, cancel: CancelToken
) -> None:
    """model.safetensors and its index, one tensor in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, dtype, shape in (spec for target in targets for spec in _specs(target)):
        size = int(np.prod(shape, dtype=np.int64)) * _ITEM[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    done, total = 0, sum(target.tensor.size for target in targets)
    with (folder / "model.safetensors").open("wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for target in targets:
            cancel.raise_if_cancelled()
            for array in _arrays(file, target):
                out.write(np.ascontiguousarray(array).data)
            done += target.tensor.size
            progress(done, total)
    names = {name: "model.safetensors" for name in header if name != "__metadata__"}
    _write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": at}, "weight_map": names}
    )


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
