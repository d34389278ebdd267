"""GGUF → mlx-lm's format: exact for every type, refused by name where not known, never half-written."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf as oracle
import mlx.core as mx
import numpy as np
import pytest
from exocli import Cancelled, CancelToken, ModelBroken, ModelNotFound
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_mlx import gguf, quants
from exo_mlx.gguf_file import GGUFFile
from tests.exo_mlx import tiny

QUANTIZED = sorted(quants.FORMATS)
DENSE = ["F32", "F16", "BF16", *sorted(quants.DENSE)]


def dequantized(weights: dict[str, mx.array], module: str, bits: int) -> np.ndarray[Any, Any]:
    parts = [weights[f"{module}.{leaf}"] for leaf in ("weight", "scales", "biases")]
    return np.array(mx.dequantize(*parts, group_size=32, bits=bits))


@pytest.mark.parametrize("kind", QUANTIZED)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), blocks=st.integers(1, 3))
def test_every_type_is_repacked_without_any_difference(kind: str, seed: int, rows: int, blocks: int) -> None:
    data = tiny.random_blocks(kind, (rows, 256 * blocks), seed)
    packed = quants.repack(data, quants.FORMATS[kind])
    arrays = [mx.array(a) for a in (packed.weight, packed.scales, packed.biases)]
    got = np.array(mx.dequantize(*arrays, group_size=32, bits=quants.FORMATS[kind].bits))
    expected = oracle.dequantize(data, oracle.GGMLQuantizationType[kind])
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("kinds", [QUANTIZED, DENSE])
def test_a_whole_file_has_the_values_and_the_row_order_of_the_original(
    kinds: list[str], tmp_path: Path
) -> None:
    source, folder = tmp_path / "m.gguf", tmp_path / "out"
    tiny.write_gguf(source, kinds)
    folder.mkdir()
    gguf.convert(source, folder)
    config = json.loads((folder / "config.json").read_text()).get("quantization", {})
    weights = mx.load(str(folder / "model.safetensors"))
    for tensor in oracle.GGUFReader(source).tensors:
        name = next(n for n in tiny.weights() if tiny.gguf_name(n) == tensor.name)
        expected = oracle.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        heads = tiny.HEADS if ".q_proj" in name else tiny.KV_HEADS if ".k_proj" in name else 0
        module = name.removesuffix(".weight")
        if f"{module}.scales" in weights:
            bits = config.get(module, config)["bits"]
            assert bits == quants.FORMATS[tensor.tensor_type.name].bits
            got = dequantized(weights, module, bits)
        else:
            got = np.array(weights[name].astype(mx.float32))
        assert np.array_equal(tiny.permuted(got, heads) if heads else got, expected), name


def test_the_folder_is_complete(tmp_path: Path) -> None:
    source, folder = tmp_path / "m.gguf", tmp_path / "out"
    tiny.write_gguf(source, "Q5_K")
    folder.mkdir()
    seen: list[tuple[int, int]] = []
    gguf.convert(source, folder, lambda done, total: seen.append((done, total)))
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama" and config["num_key_value_heads"] == tiny.KV_HEADS
    assert config["rms_norm_eps"] == 1e-5 and config["tie_word_embeddings"] is True
    assert config["quantization"]["bits"] == 5 and config["eos_token_id"] == [2, 0]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(mx.load(str(folder / "model.safetensors")))
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"] == tiny.TEMPLATE
    assert [d for d, _ in seen] == sorted(d for d, _ in seen) and seen[-1][0] == seen[-1][1] > 0


def test_mixed_types_are_named_module_by_module(smollm2: Path) -> None:
    quantization = json.loads((smollm2 / "config.json").read_text())["quantization"]
    assert quantization["bits"] == 4 and quantization["model.embed_tokens"]["bits"] == 8


def test_the_real_tokenizer_splits_digits_and_keeps_control_tokens_whole(smollm2: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>user").tokens == ["<|im_start|>", "user"]
    assert tokenizer.encode("in 1234").tokens == ["in", "Ġ", "1", "2", "3", "4"]
    text = "Grüße, 世界! \t 🎉 don't\n\n  x"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arch": "mamba"}, '"mamba"'),
        ({"kind": "NVFP4"}, "NVFP4"),
        ({"extra": "rope_freqs.weight"}, "rope_freqs.weight"),
        ({"extra": "blk.2.attn_q.weight"}, "blk.2.attn_q.weight"),
        ({"extra": "blk.0.attn_q.bias"}, "lacks the tensor blk.0.attn_k.bias"),
        ({"without": "blk.1.ffn_up.weight"}, "lacks the tensor blk.1.ffn_up.weight"),
        ({"without": "output_norm.weight"}, "lacks the tensor output_norm.weight"),
        ({"expert_count": 8}, "expert_count = 8"),
        ({"rope__dimension_count": 32}, "rope.dimension_count = 32"),
        ({"rope__scaling__type": "longrope"}, '"longrope"'),
        ({"extra": "blk.0.ffn_gate_exps.weight"}, "ffn_gate_exps"),
        ({"tokenizer__model": "bert"}, '"bert"'),
        ({"tokenizer__model": "llama"}, "tokenizer's scores"),
        ({"tokenizer__pre": "viking"}, '"viking"'),
        ({"block_count": None}, "block_count"),
        ({"block_count": 2**32 - 1}, "lacks the tensor blk.10."),
        ({"attention__head_count": 0}, "metadata"),
    ],
)
def test_what_is_not_supported_is_refused_by_name_before_anything_is_written(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    source, folder = tmp_path / "m.gguf", tmp_path / "out"
    tiny.write_gguf(source, **changes)
    folder.mkdir()
    with pytest.raises(ModelBroken) as caught:
        gguf.convert(source, folder)
    assert words in caught.value.message and str(source) in caught.value.message
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    tiny.write_gguf(path)
    return path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_anywhere_is_one_sentence(
    data: st.DataObject, whole_file: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    length = data.draw(st.integers(0, len(whole_file) - 1))
    path = tmp_path_factory.mktemp("cut") / "m.gguf"
    path.write_bytes(whole_file[:length])
    with pytest.raises(ModelBroken), GGUFFile(path):
        pass


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_damage_in_the_header_is_one_sentence_or_harmless(
    data: st.DataObject, whole_file: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    at = data.draw(st.integers(0, 4000))
    damaged = bytearray(whole_file)
    damaged[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    path = tmp_path_factory.mktemp("damaged") / "m.gguf"
    path.write_bytes(damaged)
    out = path.with_name("out")
    out.mkdir()
    try:
        gguf.convert(path, out)
    except ModelBroken:
        assert not (out / "model.safetensors").exists()


def test_no_file_and_no_gguf(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        GGUFFile(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is not a model at all")
    with pytest.raises(ModelBroken, match="no GGUF file"):
        GGUFFile(tmp_path / "text.gguf")
    (tmp_path / "v1.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    with pytest.raises(ModelBroken, match="version 1"):
        GGUFFile(tmp_path / "v1.gguf")


def test_a_cancel_stops_between_tensors(tmp_path: Path) -> None:
    source, folder, cancel = tmp_path / "m.gguf", tmp_path / "out", CancelToken()
    tiny.write_gguf(source)
    folder.mkdir()
    with pytest.raises(Cancelled):
        gguf.convert(source, folder, lambda done, total: cancel.cancel() and None, cancel)
