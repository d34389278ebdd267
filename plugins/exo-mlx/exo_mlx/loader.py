"""Loads a model folder into memory: the model, its tokenizer and what an engine must know of them.

Runs in a worker. Never asks the network and never runs code that a model brings with it.
Knows mlx-lm; knows no requests and no names (models.py finds the folder).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from exocli import CancelToken, ModelBroken, ProgressFn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model, load_tokenizer

from exo_mlx import dense, folder, memory, models

CpuDtype = Literal["auto", "float32", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model that is ready.

    `dtype` names what the weights are now (`float32`, `bfloat16`, `4-bit`); `nbytes` is their size in
    memory; `context` is in tokens, None = unknown; `end_tokens` are those of config, generation config
    and tokenizer together; `kv_bytes` is what one token adds to a KV cache; `notes` are for a person.
    """

    path: Path
    model: Any
    tokenizer: TokenizerWrapper
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    dtype: str
    context: int | None
    end_tokens: frozenset[int]
    nbytes: int
    kv_bytes: int
    notes: tuple[str, ...] = ()


def load(
    path: Path,
    *,
    cpu_dtype: CpuDtype = "auto",
    progress: ProgressFn = lambda done, total: None,
    force: bool = False,
    limit: int | None = None,
    cut: Callable[[Any, Mapping[str, Any]], Any] | None = None,
) -> Loaded:
    """Load the folder (or GGUF file) `path`; `progress` counts bytes in memory.

    On the CPU device "auto" makes the weights float32 if they fit then (only float32 reaches the BLAS),
    "float32" does so in any case, "keep" never. `limit` is the memory that may be used, default what
    is free. `cut(model, config)` gives the part of the model that is wanted, while its weights are still
    on disk: only those of the part are read. Raises ModelNotFound, ModelBroken, and OutOfMemory unless
    `force`.
    """
    if path.suffix == ".gguf" and path.is_file():
        path = models.gguf_folder(path, progress, CancelToken())
    found = folder.inspect(path)
    generation = folder.read_json(path / "generation_config.json") or {}
    model, config = _open_model(found)
    if cut is not None:
        model = cut(model, config)
    free = memory.available() if limit is None else limit
    notes: list[str] = []
    to_float32 = mx.default_device() == mx.cpu and cpu_dtype != "keep"
    if to_float32 and cpu_dtype == "auto" and not memory.fits(float32_bytes(model), free):
        to_float32 = False
        size = memory.human(float32_bytes(model))
        notes.append(f"float32 weights would need {size}; they stay as they are, which is slow.")
    if not force:
        memory.check(float32_bytes(model) if to_float32 else _nbytes(model), free, path.name)
    tokenizer = _open_tokenizer(found, config, generation)
    if to_float32:
        _make_float32(model, progress)
    else:
        _read(model, progress)
    return Loaded(
        path=path,
        model=model,
        tokenizer=tokenizer,
        config=config,
        generation_config=generation,
        dtype=_dtype(model),
        context=found.context,
        end_tokens=frozenset(int(token) for token in tokenizer.eos_token_ids),
        nbytes=_nbytes(model),
        kv_bytes=memory.kv_bytes_per_token(model),
        notes=tuple(notes),
    )


def _open_model(found: folder.ModelFolder) -> tuple[Any, dict[str, Any]]:
    """The model with its weights still on disk (MLX reads an array when it is first needed)."""
    try:
        model, config = load_model(found.path, lazy=True, trust_remote_code=False)
    except ValueError as error:
        text = str(error)
        if "not supported" in text and found.architecture in text:
            raise ModelBroken(
                f'The model {found.path.name} is of the architecture "{found.architecture}", '
                "which mlx-lm does not know: choose another model or update mlx-lm."
            ) from error
        raise _broken(found, error) from error
    except Exception as error:  # whatever a model class raises for a config that is not as it should be
        raise _broken(found, error) from error
    return model, config


def _broken(found: folder.ModelFolder, error: Exception) -> ModelBroken:
    first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return ModelBroken(f"The model {found.path} cannot be loaded: {first[:200]}.")


def _open_tokenizer(
    found: folder.ModelFolder, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> TokenizerWrapper:
    """`local_files_only` and no remote code: transformers asks nobody, nor runs what a folder brings."""
    try:
        return load_tokenizer(
            found.path,
            {"local_files_only": True, "trust_remote_code": False},
            eos_token_ids=end_tokens(config, generation) or None,
        )
    except Exception as error:  # transformers raises nearly anything for a damaged tokenizer
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ModelBroken(f"The tokenizer of {found.path} cannot be loaded: {first[:200]}.") from error


def end_tokens(*configs: Mapping[str, Any]) -> list[int]:
    """Every end token that configs (and their text part) name: `eos_token_id`, one or a list."""
    found: set[int] = set()
    for config in configs:
        for part in (config, config.get("text_config")):
            value = part.get("eos_token_id") if isinstance(part, Mapping) else None
            found.update(v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int))
    return sorted(found)


# --------------------------------------------------------------------------------------------- weights


def _modules(model: Any) -> list[tuple[str, Any]]:
    return list(tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module))


def _arrays(model: Any) -> list[tuple[str, Any]]:
    return list(tree_flatten(model.parameters()))


def _nbytes(model: Any) -> int:
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
        if "scales" not in module or (new := dense.to_dense(module)) is None:
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
    gc.collect()
    mx.clear_cache()


def _read(model: Any, progress: ProgressFn) -> None:
    """Bring every array into memory."""
    done, total = 0, _nbytes(model)
    for _, array in _arrays(model):
        mx.eval(array)
        done += int(array.nbytes)
        progress(done, total)


def _dtype(model: Any) -> str:
    """What most of the weights are: `4-bit`, `float32`, `bfloat16`."""
    sizes: dict[str, int] = {}
    for _, module in _modules(model):
        bits = f"{module.bits}-bit" if "scales" in module else None
        for _, array in tree_flatten(module.parameters()):
            name = bits or str(array.dtype).removeprefix("mlx.core.")
            sizes[name] = sizes.get(name, 0) + int(array.nbytes)
    return max(sizes, key=lambda name: sizes[name], default="float32")
