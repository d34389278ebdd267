"""The tokenizer in a GGUF's metadata as Hugging Face files: tokenizer.json and its config.

Byte-level BPE only, and only pre-tokenizers whose rules are known here; others are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exocli import ModelBroken

_CONTROL, _USER_DEFINED = 3, 4
_END_NAMES = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
)
"""Control tokens that end a turn or a text in the families that are known here."""


def _digits_then_bytes() -> Any:
    from tokenizers import pre_tokenizers as pre

    return pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False, use_regex=True)]
    )


def _bytes_only() -> Any:
    from tokenizers import pre_tokenizers as pre

    return pre.ByteLevel(add_prefix_space=False, use_regex=True)


_PRE_TOKENIZERS = {"smollm": _digits_then_bytes, "gpt-2": _bytes_only}


def check(metadata: Mapping[str, Any], path: Path) -> None:
    """Raises ModelBroken, naming it, for a tokenizer that `write` cannot make."""
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise ModelBroken(f'{path} has a tokenizer of the kind "{model}": byte-level BPE can be read.')
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise ModelBroken(f'{path} has the pre-tokenizer "{pre}": {known} can be read.')
    for key in ("tokens", "merges", "token_type"):
        if not isinstance(metadata.get(f"tokenizer.ggml.{key}"), list):
            raise ModelBroken(f"{path} lacks its tokenizer's {key}.")


def end_tokens(metadata: Mapping[str, Any]) -> list[int]:
    """Every token that ends a reply: those that the file names, then the known names among its control
    tokens."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = [metadata[f"tokenizer.ggml.{key}"] for key in keys if f"tokenizer.ggml.{key}" in metadata]
    types = metadata["tokenizer.ggml.token_type"]
    others = [
        number
        for number, text in enumerate(metadata["tokenizer.ggml.tokens"])
        if types[number] == _CONTROL and text in _END_NAMES
    ]
    return list(dict.fromkeys([*named, *others]))


def write(metadata: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Writes tokenizer.json into `folder`; returns what belongs in tokenizer_config.json."""
    from tokenizers import AddedToken, Tokenizer, decoders
    from tokenizers.models import BPE

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]]()
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(text, special=kind == _CONTROL, normalized=False)
        for text, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    tokenizer.save(str(folder / "tokenizer.json"))
    return _config(metadata, tokens)


def _config(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            config[f"{name}_token"] = tokens[number]
    if template := metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config
