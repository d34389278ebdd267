"""A tokenizer rebuilt from GGUF metadata gives the token ids of the model's own."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exocli import ModelBroken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from exo_mlx import tokenizer_gguf
from tests.exo_mlx import tiny

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
PRE = {"qwen3": "qwen2", "llama3_1": "llama-bpe", "llama2": None, "gemma3": None}
"""Models with published tokenizers, and their `tokenizer.ggml.pre`; None = SentencePiece."""
LARGE = [pytest.param(name, marks=pytest.mark.soak) for name in ("llama3_1", "gemma3")]
Pair = tuple[Any, Any, dict[str, Any]]
"""The model's own tokenizer, the rebuilt one, its config."""


@functools.cache
def metadata_of(folder: Path, pre: str | None) -> dict[str, Any]:
    """What llama.cpp's converter writes for a model's own tokenizer.json. Do not change it."""
    own = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocab: dict[str, int] = own["model"]["vocab"]
    added = {token["content"]: token for token in own["added_tokens"]}
    numbers = {**vocab, **{text: token["id"] for text, token in added.items()}}
    tokens = sorted(numbers, key=lambda text: numbers[text])
    types = [
        NORMAL if text not in added else CONTROL if added[text]["special"] else USER_DEFINED
        for text in tokens
    ]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in own["model"]["merges"]]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2" if pre else "llama",
        "tokenizer.ggml.pre": pre or "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.eos_token_id": numbers[config["eos_token"]],
        "tokenizer.chat_template": config.get("chat_template"),
    }
    if config.get("bos_token"):
        metadata["tokenizer.ggml.bos_token_id"] = numbers[config["bos_token"]]
    if pre:
        metadata["tokenizer.ggml.merges"] = merges
    else:
        best: dict[str, float] = {}
        for rank, merge in enumerate(merges):
            best.setdefault(merge.replace(" ", ""), -float(rank))
        metadata["tokenizer.ggml.scores"] = [best.get(text, -1e6) for text in tokens]
        metadata["tokenizer.ggml.unknown_token_id"] = numbers["<unk>"]
        metadata["tokenizer.ggml.add_space_prefix"] = own["normalizer"]["type"] == "Sequence"
        types = [
            BYTE if text.startswith("<0x") and len(text) == 6 else t
            for text, t in zip(tokens, types, strict=True)
        ]
    metadata["tokenizer.ggml.token_type"] = types
    return metadata


@pytest.fixture(scope="module")
def rebuilt(
    real_tokenizer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Pair]:
    @functools.cache
    def make(name: str) -> Pair:
        own, folder = real_tokenizer(name), tmp_path_factory.mktemp(name)
        config = tokenizer_gguf.write(metadata_of(own, PRE[name]), folder, folder)
        files = (own / "tokenizer.json", folder / "tokenizer.json")
        return (*(Tokenizer.from_file(str(file)) for file in files), config)

    return make


TEXTS = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            [
                *(
                    "don't I'LL we've",
                    "  two  spaces",
                    " " * 17,
                    "\n\n\n",
                    "\t\t",
                    "\r\n \n",
                    "▁",
                    "é",
                    "e\u0301",
                ),
                *(
                    "12345 007",
                    "3.14",
                    "x=y**2;",
                    "名前は",
                    "😀👩‍👩‍👧",
                    "<|im_start|>",
                    "<|eot_id|>",
                    "</s>",
                    "<unk>",
                ),
                *(
                    "<tool_call>",
                    "<think>",
                    "日本 語",
                    "Привет",
                    "नमस्ते",
                    "\u200b",
                    "\x00",
                    "!!!\n",
                    "/n",
                    "A.B.C",
                ),
            ]
        ),
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize("name", ["qwen3", "llama2", *LARGE])
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_every_text_has_the_token_ids_of_the_model_s_own(
    name: str, text: str, rebuilt: Callable[[str], Pair]
) -> None:
    own, ours, _ = rebuilt(name)
    for special in (True, False):
        expected = own.encode(text, add_special_tokens=special).ids
        assert ours.encode(text, add_special_tokens=special).ids == expected
    for skip in (True, False):
        assert ours.decode(expected, skip_special_tokens=skip) == own.decode(
            expected, skip_special_tokens=skip
        )


@pytest.mark.parametrize("name", ["llama2", *LARGE])
def test_a_text_begins_with_the_beginning_token(name: str, rebuilt: Callable[[str], Pair]) -> None:
    _, ours, config = rebuilt(name)
    assert config["add_bos_token"] and ours.encode("hello").tokens[0] == config["bos_token"]


def test_the_config_names_the_special_tokens(rebuilt: Callable[[str], Pair]) -> None:
    assert rebuilt("qwen3")[2]["eos_token"] == "<|im_end|>" and not rebuilt("qwen3")[2]["add_bos_token"]
    assert rebuilt("llama2")[2]["unk_token"] == "<unk>"


def test_a_file_that_says_so_has_no_beginning_token(
    real_tokenizer: Callable[[str], Path], tmp_path: Path
) -> None:
    metadata = metadata_of(real_tokenizer("llama2"), None)
    tokenizer_gguf.write({**metadata, "tokenizer.ggml.add_bos_token": False}, tmp_path, tmp_path)
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert ours.encode("the end").tokens == ["▁the", "▁end"]


@pytest.mark.parametrize("damage", ["merges", "token_type", "bos_token_id"])
def test_lists_that_do_not_fit_together_are_one_sentence(damage: str, tmp_path: Path) -> None:
    metadata = tiny.tokenizer_metadata() | {"tokenizer.ggml.add_bos_token": True}
    metadata[f"tokenizer.ggml.{damage}"] = {
        "merges": [*metadata["tokenizer.ggml.merges"], "no such"],
        "token_type": metadata["tokenizer.ggml.token_type"][:-1],
        "bos_token_id": 10**6,
    }[damage]
    with pytest.raises(ModelBroken, match="damaged tokenizer") as caught:
        tokenizer_gguf.check(metadata, tmp_path)
        tokenizer_gguf.write(metadata, tmp_path, tmp_path)
    assert str(tmp_path) in caught.value.message and "\n" not in caught.value.message
