"""Loads a model folder into memory: the model, its tokenizer and what an engine must know of them.

Runs in a worker. Never asks the network and never runs code that a model brings with it.
Knows mlx-lm; knows no requests and no names (models.py finds the folder).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exocli import CancelToken, ModelBroken, ProgressFn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model, load_tokenizer

from exo_mlx import adapters, folder, memory, models, sentence, template_files, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model that is ready.

    `dtype` names what the weights are now (`float32`, `bfloat16`, `4-bit`); `nbytes` is their size in
    memory; `context` is in tokens, None = unknown; `end_tokens` are those of config, generation config
    and tokenizer together; `notes` are for a person.
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
    notes: tuple[str, ...] = ()


def load(
    path: Path,
    *,
    cpu_dtype: weights.CpuDtype = "auto",
    progress: ProgressFn = lambda done, total: None,
    force: bool = False,
    limit: int | None = None,
    cut: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    adapter: Path | None = None,
    chat_template: Path | None = None,
) -> Loaded:
    """Load the folder (or GGUF file) `path`; `progress` counts bytes in memory.

    On the CPU device "auto" makes the weights float32 if they fit then (only float32 reaches the BLAS),
    "float32" does so in any case, "keep" never. `limit` is the memory that may be used, default what
    is free. `cut(model, config)` gives the part of the model that is wanted, while its weights are still
    on disk: only those of the part are read. `adapter` is a folder to put over the model (adapters.py);
    `chat_template` a file that replaces the model's own; without either, one beside the model is taken.
    Raises ModelNotFound, ModelBroken, and OutOfMemory unless `force`.
    """
    asked = path
    template = None if chat_template is None else template_files.read(chat_template)
    if path.suffix == ".gguf" and path.is_file():
        path = models.gguf_folder(path, progress, CancelToken())
    found = folder.inspect(path)
    generation = folder.read_json(path / "generation_config.json") or {}
    model, config = _open_model(found)
    told = [] if adapter is None else [adapters.apply(model, adapter)]
    if cut is not None:
        model = cut(model, config)
    free = memory.available() if limit is None else limit
    to_float32, notes = weights.settle(model, path.name, cpu_dtype, free, force)

    def open_tokenizer() -> TokenizerWrapper:
        tokenizer = _open_tokenizer(found, config, generation, template)
        if not tokenizer.has_chat_template:
            beside = template_files.beside(asked) or template_files.beside(path)
            if beside is not None:
                return _open_tokenizer(found, config, generation, beside)
            told.append(template_files.ADVICE)
        return tokenizer

    # That is Python's work (2 s for a vocabulary of 150,000), while the weights are read without Python.
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_tokenizer)
        weights.bring(model, to_float32, progress)
        tokenizer = opening.result()
    return Loaded(
        path=path,
        model=model,
        tokenizer=tokenizer,
        config=config,
        generation_config=generation,
        dtype=weights.dtype_of(model),
        context=found.context,
        end_tokens=frozenset(int(token) for token in tokenizer.eos_token_ids),
        nbytes=weights.nbytes(model),
        notes=(*told, *notes),
    )


def _open_model(found: folder.ModelFolder) -> tuple[Any, dict[str, Any]]:
    """The model with its weights still on disk (MLX reads an array when it is first needed)."""
    try:
        model, config = load_model(found.path, lazy=True, trust_remote_code=False)
    except ValueError as error:
        if found.architecture in sentence.ENCODERS:
            raise ModelBroken(f"The model {found.path.name} makes embeddings; it writes no text.") from error
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
    found: folder.ModelFolder,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    template: str | None,
) -> TokenizerWrapper:
    """`local_files_only` and no remote code: transformers asks nobody, nor runs what a folder brings.
    `template` replaces the model's own; mlx-lm finds the tool parser by it."""
    extra = {} if template is None else {"chat_template": template}
    try:
        return load_tokenizer(
            found.path,
            {"local_files_only": True, "trust_remote_code": False, **extra},
            eos_token_ids=end_tokens(config, generation) or None,
        )
    except Exception as error:  # transformers raises nearly anything for a damaged tokenizer
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ModelBroken(f"The tokenizer of {found.path} cannot be loaded: {text[:200]}.") from error


def end_tokens(*configs: Mapping[str, Any]) -> list[int]:
    """Every end token that configs (and their text part) name: `eos_token_id`, one or a list."""
    found: set[int] = set()
    for config in configs:
        for part in (config, config.get("text_config")):
            value = part.get("eos_token_id") if isinstance(part, Mapping) else None
            found.update(v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int))
    return sorted(found)
