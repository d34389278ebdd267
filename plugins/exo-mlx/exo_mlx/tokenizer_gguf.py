"""The tokenizer in a GGUF's metadata as Hugging Face files: tokenizer.json and its config.

Byte-level BPE whose pre-tokenizer's rules are known here, and SentencePiece's BPE; others are refused by
name. How each splits and merges is in tokenizer_bpe.py and tokenizer_spm.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exocli import ModelBroken

from exo_mlx import tokenizer_bpe, tokenizer_spm

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Token types: those that are never text, and those that are whole wherever they stand in one."""
_END_NAMES = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
)
"""Control tokens that end a turn or a text in the families that are known here."""
_KINDS = {"gpt2": ("tokens", "token_type", "merges"), "llama": ("tokens", "token_type", "scores")}
"""What each kind of tokenizer needs; "llama" is GGUF's name for SentencePiece."""


def check(metadata: Mapping[str, Any], path: Path) -> None:
    """Raises ModelBroken, naming it, for a tokenizer that `write` cannot make."""
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model not in _KINDS:
        raise ModelBroken(
            f'{path} has a tokenizer of the kind "{model}": byte-level BPE and SentencePiece can be read.'
        )
    if model == "gpt2" and pre not in tokenizer_bpe.PRE_TOKENIZERS:
        known = ", ".join(sorted(tokenizer_bpe.PRE_TOKENIZERS))
        raise ModelBroken(f'{path} has the pre-tokenizer "{pre}": {known} can be read.')
    lengths = set()
    for key in _KINDS[model]:
        value = metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list):
            raise ModelBroken(f"{path} lacks its tokenizer's {key}.")
        lengths |= {len(value)} if key != "merges" else set()
    if len(lengths) != 1:
        raise ModelBroken(f"{path} has a damaged tokenizer: its lists are not equally long.")


def end_tokens(metadata: Mapping[str, Any]) -> list[int]:
    """Every token that ends a reply: those that the file names, then the known names among its control
    tokens."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = [metadata[f"tokenizer.ggml.{key}"] for key in keys if f"tokenizer.ggml.{key}" in metadata]
    types = metadata["tokenizer.ggml.token_type"]
    others = [
        number
        for number, text in enumerate(metadata["tokenizer.ggml.tokens"])
        if types[number] == CONTROL and text in _END_NAMES
    ]
    return list(dict.fromkeys([*named, *others]))


def write(metadata: Mapping[str, Any], folder: Path, path: Path) -> dict[str, Any]:
    """Writes tokenizer.json into `folder`; returns what belongs in tokenizer_config.json.

    Raises ModelBroken, naming `path`, if the lists do not fit together.
    """
    try:
        tokenizer, tokens, begins = _build(metadata)
        tokenizer.save(str(folder / "tokenizer.json"))
        return _config(metadata, tokens, begins)
    except OSError:
        raise
    except Exception as error:  # the library raises plain Exception for a merge of no token, and others
        raise ModelBroken(f"{path} has a damaged tokenizer: {error}.") from error


def _build(metadata: Mapping[str, Any]) -> tuple[Any, list[str], bool]:
    """→ (the tokenizer, its tokens by number, does a text begin with the beginning token?)"""
    from tokenizers import AddedToken, processors

    kind = tokenizer_spm if metadata["tokenizer.ggml.model"] == "llama" else tokenizer_bpe
    tokenizer, tokens = kind.build(metadata)
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    tokenizer.add_tokens(
        [
            AddedToken(text, special=type_ != USER_DEFINED, normalized=False)
            for text, type_ in zip(tokens, types, strict=True)
            if type_ in (UNKNOWN, CONTROL, USER_DEFINED)
        ]
    )
    number = metadata.get("tokenizer.ggml.bos_token_id")
    begins = bool(metadata.get("tokenizer.ggml.add_bos_token", kind.begins(metadata))) and number is not None
    if begins:
        bos = tokens[number]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, number)]
        )
    return tokenizer, tokens, begins


def _config(metadata: Mapping[str, Any], tokens: list[str], begins: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": begins,
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
