"""SentencePiece's BPE from a GGUF's metadata (`tokenizer.ggml.model` = "llama"): pieces and their scores.

SentencePiece joins the neighbours whose joint piece has the best score. The same as merges by rank: every
way to cut a piece into two others, pieces of the best score first. Spaces are "▁"; unknown characters
become bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE = "▁"


def begins(metadata: Mapping[str, Any]) -> bool:
    return True


def build(metadata: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """→ (the `tokenizers.Tokenizer` without its added tokens, its tokens by number)"""
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    types: list[int] = metadata["tokenizer.ggml.token_type"]
    tokens = [
        text.replace(" ", _SPACE) if type_ == _USER_DEFINED else text  # llama.cpp writes those as text
        for text, type_ in zip(metadata["tokenizer.ggml.tokens"], types, strict=True)
    ]
    vocab = {text: number for number, text in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    tokenizer = Tokenizer(
        BPE(
            vocab=vocab,
            merges=_merges(vocab, types, metadata["tokenizer.ggml.scores"]),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=_BYTE in types,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        decoding.append(decoders.Strip(content=" ", left=1, right=0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer, tokens


def _merges(vocab: Mapping[str, int], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """All pairs of tokens that make a token, best first. A user's own tokens are matched before all others,
    so they come first, longest first."""
    found: list[tuple[float, int, int, str, str]] = []
    for text, number in vocab.items():
        type_ = types[number]
        if type_ in (_UNKNOWN, _CONTROL, _BYTE):
            continue
        rank = -scores[number] if type_ != _USER_DEFINED else 0.0
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in vocab and right in vocab:
                found.append((rank, -cut, cut - len(text), left, right))
    found.sort(key=lambda merge: merge[:3])
    return [(left, right) for *_, left, right in found]
