"""Tiny models: a GGUF file of any quantization, and a folder in mlx-lm's format, with a real tokenizer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

HIDDEN, HEADS, KV_HEADS, LAYERS, FEED = 256, 4, 2, 2, 256
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"

Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and merges: three control tokens, the 256 bytes, and two merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "he", "hel"]
    return tokens, [3, 3, 3, *([1] * (len(tokens) - 3))], ["h e", "he l"]


def weights(seed: int = 0) -> Weights:
    """Random weights by mlx-lm's names."""
    rng = np.random.default_rng(seed)
    vocab, head = len(vocabulary()[0]), HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        base = f"model.layers.{layer}"
        shapes |= {
            f"{base}.input_layernorm.weight": (HIDDEN,),
            f"{base}.post_attention_layernorm.weight": (HIDDEN,),
            f"{base}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{base}.self_attn.k_proj.weight": (head * KV_HEADS, HIDDEN),
            f"{base}.self_attn.v_proj.weight": (head * KV_HEADS, HIDDEN),
            f"{base}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{base}.mlp.gate_proj.weight": (FEED, HIDDEN),
            f"{base}.mlp.up_proj.weight": (FEED, HIDDEN),
            f"{base}.mlp.down_proj.weight": (HIDDEN, FEED),
        }
    return {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"


def permuted(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """The row order that llama-type GGUF files have: the halves of each head interleaved."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def tokenizer_metadata() -> dict[str, Any]:
    """GGUF's keys for the tiny vocabulary."""
    tokens, types, merges = vocabulary()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.chat_template": TEMPLATE,
    }


def write_gguf(
    path: Path, kind: str | Sequence[str] = "Q4_1", arch: str = "llama", **changes: Any
) -> Weights:
    """A GGUF file with the matrices of type `kind`, or of several in turn; returns the weights before.

    `changes` replaces metadata: a key with `__` for `.`; None leaves it out. `extra` is a tensor more,
    `without` one less, `parts` splits the file.
    """
    values = weights()
    extra, without, parts = (changes.pop(name, None) for name in ("extra", "without", "parts"))
    metadata: dict[str, Any] = {
        "context_length": 512,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": FEED,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **tokenizer_metadata(),
    }
    for key, value in changes.items():
        key = key.replace("__", ".")
        if key.startswith("tokenizer.") and key != "tokenizer.chat_template":
            key = f"tokenizer.ggml.{key.removeprefix('tokenizer.')}"
        metadata[key] = value
    arrays = {}
    for name, array in values.items():
        heads = HEADS if ".q_proj" in name else KV_HEADS if ".k_proj" in name else 0
        if gguf_name(name) != without:
            arrays[gguf_name(name)] = permuted(array, heads) if heads else array
    if extra is not None:
        arrays[extra] = np.zeros(32, np.float32)
    write_arrays(path, arch, metadata, arrays, kind, parts)
    return values


def write_arrays(
    path: Path,
    arch: str,
    metadata: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray[Any, Any]],
    kind: str | Sequence[str] = "F32",
    parts: int | None = None,
) -> None:
    """A GGUF file of any architecture, the matrices of type `kind` or of several in turn.

    `metadata`'s keys get the architecture's name in front unless they are the tokenizer's. `parts`: split
    into so many files."""
    writer = GGUFWriter(path, arch, split_max_tensors=-(-len(arrays) // parts) if parts else 0)
    for key, value in metadata.items():
        name = key if key.startswith("tokenizer.") else f"{arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_array(name, value)
    kinds = itertools.cycle([kind] if isinstance(kind, str) else kind)
    for name, array in arrays.items():
        _add(writer, name, array, next(kinds) if array.ndim == 2 else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, name: str, array: np.ndarray[Any, Any], kind: str) -> None:
    type_ = GGMLQuantizationType[kind]
    if kind in ("F32", "F16"):
        writer.add_tensor(name, array.astype(np.float32 if kind == "F32" else np.float16))
    elif kind in ("BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        writer.add_tensor(name, quantize(array, type_), raw_dtype=type_)
    else:  # the package reads these but does not write them
        writer.add_tensor(name, random_blocks(kind, array.shape), raw_dtype=type_)


def random_blocks(kind: str, shape: tuple[int, ...], seed: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Valid blocks with random contents: any bits, and finite float16 scales where the type has them."""
    from gguf.constants import GGML_QUANT_SIZES

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // block, size), dtype=np.uint8)
    halves = rng.normal(0, 0.01, (len(blocks), 2)).astype(np.float16).view(np.uint8)
    if kind == "IQ1_M":  # spread over the scales; its exponent must not be all ones
        blocks[:, 55] = blocks[:, 55] & 0x0F | 0x20
    if kind == "MXFP4":  # an exponent
        blocks[:, 0] = blocks[:, 0] % 8 + 120
    places = {
        "Q2_K": (80, 4),
        "Q3_K": (108, 2),
        "Q6_K": (208, 2),
        "TQ1_0": (52, 2),
        "TQ2_0": (64, 2),
        **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0"), (0, 2)),
        **dict.fromkeys(("IQ1_M", "MXFP4"), (0, 0)),
    }
    at, width = places.get(kind, (0, 4))
    blocks[:, at : at + width] = halves[:, :width]
    return blocks.reshape(shape[0], -1)


def write_folder(path: Path, dtype: str = "float32", **config: Any) -> Path:
    """A folder in mlx-lm's format with tokenizer, config and weights of `dtype`."""
    import mlx.core as mx

    from exo_mlx import gguf, tokenizer_gguf
    from exo_mlx.gguf_parts import GGUFModel

    path.mkdir(parents=True, exist_ok=True)
    source = path / "source.gguf"
    values = write_gguf(source, "F32")
    with GGUFModel(source) as file:
        _, base = gguf.plan(file)
        tokenizer = tokenizer_gguf.write(file.metadata, path, source)
    source.unlink()
    arrays = {name: mx.array(value).astype(getattr(mx, dtype)) for name, value in values.items()}
    mx.save_safetensors(str(path / "model.safetensors"), arrays, {"format": "mlx"})
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (path / "config.json").write_text(json.dumps({**base, "eos_token_id": 2, **config}))
    return path
