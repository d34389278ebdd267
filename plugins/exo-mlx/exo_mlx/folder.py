"""Model folders in mlx-lm's format: what must be in one, checked before anything reads it.

Reads JSON and the headers of safetensors; imports neither mlx nor mlx-lm, so that listing is fast.
Format of safetensors: 8 bytes little-endian length, that many bytes of JSON, then the tensors.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exocli import ModelBroken, ModelNotFound

_SHARD = re.compile(r"(model.*)-(\d{5})-of-(\d{5})\.safetensors")
_MAX_HEADER = 100 * 1024**2
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "vocab.txt")
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A folder that passed `inspect`: `weights` are its safetensors files, `size` their bytes."""

    path: Path
    config: Mapping[str, Any]
    weights: tuple[Path, ...]
    size: int

    @property
    def architecture(self) -> str:
        return str(self.config["model_type"])

    @property
    def context(self) -> int | None:
        """Positions the model was made for, in tokens; None where its config does not say."""
        return context_of(self.config)


def looks_like_model(path: Path) -> bool:
    """Is this, by its file names, a folder that mlx-lm could load?"""
    weights = (file.is_file() for file in path.glob("model*.safetensors"))  # a link may lead nowhere
    return (path / "config.json").is_file() and any(weights)


def has_tokenizer(path: Path) -> bool:
    return any((path / name).is_file() for name in _TOKENIZERS)


def has_chat_template(path: Path) -> bool:
    """Does the folder bring a template for conversations, in any of the places where transformers and
    mlx-lm look for one?"""
    if any((path / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        config = read_json(path / "tokenizer_config.json") or {}
    except ModelBroken:
        return False
    return bool(config.get("chat_template") or config.get("chat_template_type"))


def context_of(config: Mapping[str, Any]) -> int | None:
    """The context length in a config.json, also of the text part of a multimodal one."""
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            for key in _CONTEXT_KEYS:
                if isinstance(part.get(key), int) and part[key] > 0:
                    return int(part[key])
    return None


def inspect(path: Path) -> ModelFolder:
    """Check that everything is there and whole.

    Raises ModelNotFound (no such folder) or ModelBroken, one sentence: no config, no tokenizer, no
    weights, a shard missing, a file that is cut off or is no safetensors.
    """
    if not path.is_dir():
        raise ModelNotFound(f"There is no model folder {path}.")
    config = read_json(path / "config.json")
    if config is None:
        raise ModelBroken(f"{path} has no config.json: it is not a model folder.")
    if not isinstance(config.get("model_type"), str):
        raise ModelBroken(f"{path / 'config.json'} names no model_type: it is not a model's config.")
    if not has_tokenizer(path):
        raise ModelBroken(f"{path} has no tokenizer (tokenizer.json): fetch the whole model.")
    weights = _weight_files(path)
    for file in weights:
        check_safetensors(file)
    return ModelFolder(
        path=path, config=config, weights=weights, size=sum(file.stat().st_size for file in weights)
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None if there is no such file; raises ModelBroken if it is not one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise ModelBroken(f"{path} cannot be read: {error}.") from error
    if not isinstance(data, dict):
        raise ModelBroken(f"{path} is not a JSON object.")
    return data


def missing_shards(path: Path) -> list[str]:
    """Weight files that the folder lacks: by its index, and by the others' names (`…-00001-of-00004`)."""
    index = read_json(path / "model.safetensors.index.json") or {}
    names = set(dict(index.get("weight_map") or {}).values())
    for file in path.glob("model*.safetensors"):
        names.add(file.name)
        if part := _SHARD.fullmatch(file.name):
            names.update(f"{part[1]}-{n:05d}-of-{part[3]}.safetensors" for n in range(1, int(part[3]) + 1))
    return sorted(name for name in names if not (path / name).is_file())


def _weight_files(path: Path) -> tuple[Path, ...]:
    missing = missing_shards(path)
    if missing:
        raise ModelBroken(f"{path} lacks the weight file {missing[0]}: fetch the model again.")
    files = tuple(sorted(path.glob("model*.safetensors")))
    if not files:
        others = [*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.pth"), *path.glob("*.gguf")]
        found = f" ({others[0].name} is of another format)" if others else ""
        raise ModelBroken(f"{path} has no weights (model*.safetensors){found}.")
    return files


def check_safetensors(path: Path) -> None:
    """Raises ModelBroken if the header is not one, or the file is not as long as the header says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise ModelBroken(f"{path} is cut off or no safetensors file: fetch the model again.")
            header = json.loads(file.read(length))
        ends = [_end(entry) for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        raise ModelBroken(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ModelBroken(f"{path} has a damaged header: fetch the model again.") from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise ModelBroken(f"{path} has {size:,} of {expected:,} bytes: fetch the model again.")


def _end(entry: Mapping[str, Any]) -> int:
    begin, end = entry["data_offsets"]
    if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end):
        raise ValueError("data_offsets")
    return end
