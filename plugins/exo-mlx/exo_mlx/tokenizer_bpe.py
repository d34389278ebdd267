"""Byte-level BPE from a GGUF's metadata: its merges, and the rules by which its family splits text first.

The expressions are those in the models' own tokenizer.json; the names are `tokenizer.ggml.pre`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LETTERS_AND_REST = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_ENGLISH_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_SIGNS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """`pattern`: what is a word, None for GPT-2's rule; `digits`: one by one before that; `compose`: the
    text in Unicode's NFC first; `whole_words`: a word that is a token is not built from merges;
    `begins`: a text begins with the beginning token where the file does not say."""

    pattern: str | None = None
    digits: bool = False
    compose: bool = False
    whole_words: bool = False
    begins: bool = False


_LLAMA3 = PreTokenizer(
    pattern=_ENGLISH_ENDINGS + _LETTERS_AND_REST + r"\p{N}{1,3}|" + _SIGNS_AND_SPACE,
    whole_words=True,
    begins=True,
)
_QWEN2 = _ENGLISH_ENDINGS + _LETTERS_AND_REST + r"\p{N}|" + _SIGNS_AND_SPACE
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": PreTokenizer(pattern=_QWEN2, compose=True),
    "deepseek-r1-qwen": PreTokenizer(pattern=_QWEN2),
    "tekken": PreTokenizer(pattern=_TEKKEN, whole_words=True, begins=True),
}


def begins(metadata: Mapping[str, Any]) -> bool:
    return PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]].begins


def build(metadata: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """→ (the `tokenizers.Tokenizer` without its added tokens, its tokens by number)"""
    from tokenizers import Regex, Tokenizer, decoders, normalizers
    from tokenizers import pre_tokenizers as pre
    from tokenizers.models import BPE

    rules = PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]]
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {text: number for number, text in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=rules.whole_words))
    if rules.compose:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre.Digits(individual_digits=True)] if rules.digits else []
    if rules.pattern is not None:
        steps.append(pre.Split(Regex(rules.pattern), behavior="isolated"))
    steps.append(pre.ByteLevel(add_prefix_space=False, use_regex=rules.pattern is None))
    tokenizer.pre_tokenizer = pre.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, tokens
