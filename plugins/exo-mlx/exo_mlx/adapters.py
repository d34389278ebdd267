"""LoRA, DoRA and fully tuned layers over a model: a folder as `mlx_lm.lora` writes it.

Loaded onto the model while its weights are on disk, so that they become float32 with the rest where the CPU
wants that. Knows mlx-lm's adapters; no requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exocli import ModelBroken, ModelNotFound
from mlx_lm.utils import load_adapters

from exo_mlx import folder

CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"


def apply(model: Any, path: Path) -> str:
    """Put the adapter in the folder `path` over `model`; → what to tell a person of it.

    Raises ModelNotFound, or ModelBroken: no adapter, one for another model, one that is damaged.
    """
    path = path.expanduser()
    if not path.is_dir():
        raise ModelNotFound(f"There is no adapter folder {path}.")
    config = folder.read_json(path / CONFIG)
    if config is None or not (path / WEIGHTS).is_file():
        raise ModelBroken(f"{path} is no adapter: mlx_lm.lora writes {CONFIG} and {WEIGHTS}.")
    if "peft_type" in config:
        raise ModelBroken(f"{path} is an adapter of the library peft: convert it to mlx-lm's form.")
    folder.check_safetensors(path / WEIGHTS)
    try:
        load_adapters(model, str(path))
    except Exception as error:  # whatever mlx-lm raises for a config that does not fit this model
        text = " ".join(str(error).split()) or type(error).__name__
        raise ModelBroken(f"The adapter {path} does not fit the model: {text[:200].rstrip('.')}.") from error
    model.eval()  # new layers are made for training, where some of the input is dropped
    rank = (config.get("lora_parameters") or {}).get("rank")
    kind = str(config.get("fine_tune_type", "lora"))
    return f"Adapter {path.name} ({kind}{f', rank {rank}' if rank else ''})."
