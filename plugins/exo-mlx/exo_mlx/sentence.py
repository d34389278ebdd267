"""What an embedding model's folder says of itself: which encoder, how its vectors are made, its limits.

The format of sentence-transformers (modules.json, 1_Pooling/config.json, sentence_bert_config.json) over
that of Hugging Face's BERT. Reads JSON alone and imports no mlx, so that listing is fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exocli import ModelBroken

from exo_mlx import folder

ENCODERS: Mapping[str, bool] = {"bert": False, "roberta": True, "xlm-roberta": True}
"""model_type → whether its positions begin behind the padding token's id (RoBERTa) or at 0."""
POOLINGS = ("mean", "cls", "max", "mean_sqrt_len")
_KEYS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
}
"""What 1_Pooling/config.json calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """`limit`: tokens of a text, the special ones included; `width`: numbers of a vector; `narrower`: the
    shorter lengths that vectors may be cut to (None = any), () where the model was not trained for that;
    `first_position`: of the first token; `lower`: texts are written small before they are tokenized."""

    config: Mapping[str, Any]
    width: int
    limit: int
    pooling: str
    normalize: bool
    first_position: int
    lower: bool
    narrower: tuple[int, ...] | None

    def check_dimensions(self, wanted: int) -> bool:
        """May a vector have this length?"""
        shorter = self.narrower is None or wanted in self.narrower
        return wanted == self.width or (0 < wanted < self.width and shorter)


def is_sentence_model(path: Path) -> bool:
    """Is this, by its config.json, an encoder that gives vectors and not text?"""
    try:
        config = folder.read_json(path / "config.json") if path.is_dir() else None
    except ModelBroken:
        return False
    return config is not None and config.get("model_type") in ENCODERS


def read(path: Path) -> Sentence:
    """Raises ModelBroken for what is missing, damaged, or would be computed in another way than here."""
    config = folder.read_json(path / "config.json") or {}
    modules = _modules(path)
    own = folder.read_json(path / "sentence_bert_config.json") or {}
    tokenizer = folder.read_json(path / "tokenizer_config.json") or {}
    try:
        shifted = ENCODERS[config["model_type"]]
        first = int(config.get("pad_token_id", 1)) + 1 if shifted else 0
        room = int(config["max_position_embeddings"]) - first
        given = [own.get("max_seq_length"), tokenizer.get("model_max_length"), room]
        limits = [int(limit) for limit in given if isinstance(limit, (int, float)) and limit > 0]
        width = int(config["hidden_size"])
        narrower = config.get("matryoshka_dimensions", ())
        return Sentence(
            config=config,
            width=width,
            limit=min(limits[0], room),
            pooling=_pooling(path, modules),
            normalize="Normalize" in modules,
            first_position=first,
            lower=bool(own.get("do_lower_case")),
            narrower=None if config.get("is_matryoshka") and not narrower else tuple(map(int, narrower)),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelBroken(f"{path} has a config.json that no encoder can be made of: {error!r}.") from error


def _modules(path: Path) -> dict[str, str]:
    """The last part of each module's type → its folder. A plain BERT has none: then the mean is meant."""
    try:
        rows = json.loads((path / "modules.json").read_text(encoding="utf-8"))
        found = {str(row["type"]).rpartition(".")[2]: str(row["path"]) for row in rows}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelBroken(f"{path / 'modules.json'} cannot be read: {error}.") from error
    for name in found:
        if name not in ("Transformer", "Pooling", "Normalize"):
            raise ModelBroken(f"{path} has a module {name}, which is not known here: choose another model.")
    return found


def _pooling(path: Path, modules: Mapping[str, str]) -> str:
    config = folder.read_json(path / modules.get("Pooling", "1_Pooling") / "config.json")
    if config is None:
        return "mean"
    named = config.get("pooling_mode")
    flags = [key for key, value in config.items() if key.startswith("pooling_mode") and value is True]
    modes = [named] if isinstance(named, str) else [_KEYS.get(key, key) for key in flags]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        shown = " and ".join(map(str, modes)) or "none"
        raise ModelBroken(f"{path} pools its vectors by {shown}; {', '.join(POOLINGS)} are known here.")
    return str(modes[0])
