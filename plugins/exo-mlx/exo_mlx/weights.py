"""A model's weights in memory: how large, of what kind, and as float32 where the CPU's BLAS wants them so.

Knows MLX modules; no files, no tokenizer, no requests.
"""

from __future__ import annotations

from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from exocli import ProgressFn
from mlx.utils import tree_flatten, tree_unflatten

from exo_mlx import memory

CpuDtype = Literal["auto", "float32", "keep"]


def settle(
    model: Any, name: str, cpu_dtype: CpuDtype, free: int | None, force: bool
) -> tuple[bool, tuple[str, ...]]:
    """Before any is read: → whether they become float32, and notes for a person.

    On the CPU device "auto" makes them so if they fit `free` bytes then, "float32" in any case, "keep"
    never. Raises OutOfMemory unless `force`.
    """
    notes = []
    to_float32 = mx.default_device() == mx.cpu and cpu_dtype != "keep"
    if to_float32 and cpu_dtype == "auto" and not memory.fits(float32_bytes(model), free):
        to_float32 = False
        size = memory.human(float32_bytes(model))
        notes.append(f"float32 weights would need {size}; they stay as they are, which is slow.")
    if not force:
        memory.check(float32_bytes(model) if to_float32 else nbytes(model), free, name)
    return to_float32, tuple(notes)


def bring(model: Any, to_float32: bool, progress: ProgressFn) -> None:
    """Read them into memory; `progress` counts bytes there."""
    if to_float32:
        _make_float32(model, progress)
    else:
        _read(model, progress)


def _modules(model: Any) -> list[tuple[str, Any]]:
    return list(tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module))


def _arrays(model: Any) -> list[tuple[str, Any]]:
    return list(tree_flatten(model.parameters()))


def nbytes(model: Any) -> int:
    """Of all weights, as they are."""
    return sum(int(array.nbytes) for _, array in _arrays(model))


def float32_bytes(model: Any) -> int:
    """Size of the weights if every floating one were float32, quantized ones written out. In bytes."""
    bits = {name: module.bits for name, module in _modules(model) if "scales" in module}
    total = 0
    for path, array in _arrays(model):
        owner, _, name = path.rpartition(".")
        if owner not in bits:
            total += int(array.size) * (4 if mx.issubdtype(array.dtype, mx.floating) else array.itemsize)
        elif name == "weight":
            total += int(array.size) * 32 // bits[owner] * 4
        elif name == "bias":
            total += int(array.size) * 4
    return total


def _make_float32(model: Any, progress: ProgressFn) -> None:
    """Every floating weight becomes float32, one array at a time: never two copies of the model.

    Norms too: one bfloat16 factor would take the whole computation off the BLAS.
    """
    done, total = 0, float32_bytes(model)
    modules = _modules(model)
    while modules:  # popped, so that each packed module is freed once its dense one is there
        name, module = modules.pop()
        if "scales" not in module:
            continue
        from exo_mlx import dense  # here: it imports mlx-lm, which takes a second

        if (new := dense.to_dense(module)) is None:
            continue
        model.update_modules(tree_unflatten([(name, new)]))
        done += int(new.weight.nbytes)
        progress(done, total)
    arrays = _arrays(model)
    while arrays:
        name, array = arrays.pop()
        if mx.issubdtype(array.dtype, mx.floating) and array.dtype != mx.float32:
            array = array.astype(mx.float32)
            model.update(tree_unflatten([(name, array)]))
        mx.eval(array)
    progress(total, total)
    mx.clear_cache()


def _read(model: Any, progress: ProgressFn) -> None:
    """Bring every array into memory."""
    done, total = 0, nbytes(model)
    for _, array in _arrays(model):
        mx.eval(array)
        done += int(array.nbytes)
        progress(done, total)


def dtype_of(model: Any) -> str:
    """What most of the weights are: `4-bit`, `float32`, `bfloat16`."""
    sizes: dict[str, int] = {}
    for _, module in _modules(model):
        bits = f"{module.bits}-bit" if "scales" in module else None
        for _, array in tree_flatten(module.parameters()):
            name = bits or str(array.dtype).removeprefix("mlx.core.")
            sizes[name] = sizes.get(name, 0) + int(array.nbytes)
    return max(sizes, key=lambda name: sizes[name], default="float32")
