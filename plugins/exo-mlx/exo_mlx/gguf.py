"""Converts a GGUF file into a model folder in mlx-lm's format, without requantizing.

An architecture is a `Family`: its names for tensors and its config. One that is not listed, a tensor
type or a tensor that is not known is refused by name before anything is written.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from exocli import CancelToken, ModelBroken, ProgressFn

from exo_mlx import quants, tokenizer_gguf
from exo_mlx.gguf_file import GGUFFile, Tensor

_PLAIN = {"F32": ("F32", "<f4"), "F16": ("F16", "<f2"), "BF16": ("BF16", "<u2")}
"""GGUF type → safetensors type and how numpy reads it (bfloat16 is passed through as it is)."""
_DENSE = frozenset(("Q6_K",))


@dataclass(frozen=True, slots=True)
class Family:
    """How one GGUF architecture maps to one of mlx-lm's.

    `layer` and `top`: GGUF name (without `blk.N.` and the `.weight` or `.bias`) → mlx-lm's name.
    `permuted`: those whose rows GGUF stores in another order for its rotary embedding, with the
    metadata key that counts their heads. `config`: metadata → what config.json says beyond the shapes.
    """

    model_type: str
    layer: Mapping[str, str]
    top: Mapping[str, str]
    permuted: Mapping[str, str]
    config: Callable[[Mapping[str, Any], str], dict[str, Any]]


def _llama_config(metadata: Mapping[str, Any], arch: str) -> dict[str, Any]:
    heads = int(metadata[f"{arch}.attention.head_count"])
    hidden = int(metadata[f"{arch}.embedding_length"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": int(metadata[f"{arch}.block_count"]),
        "intermediate_size": int(metadata[f"{arch}.feed_forward_length"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.get(f"{arch}.attention.head_count_kv", heads)),
        "head_dim": int(metadata.get(f"{arch}.attention.key_length", hidden // heads)),
        "rms_norm_eps": _short(metadata[f"{arch}.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _short(metadata.get(f"{arch}.rope.freq_base", 10000.0)),
        "max_position_embeddings": int(metadata[f"{arch}.context_length"]),
        "hidden_act": "silu",
    }


def _short(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


FAMILIES: dict[str, Family] = {
    "llama": Family(
        model_type="llama",
        layer={
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        },
        top={"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"},
        permuted={"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"},
        config=_llama_config,
    ),
}

_LAYER = re.compile(r"^blk\.(\d+)\.(\w+)\.(weight|bias)$")
_TOP = re.compile(r"^(\w+)\.(weight|bias)$")


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a tensor goes: mlx-lm's `module` and `leaf`; `heads` > 0 if its rows are to be unpermuted."""

    tensor: Tensor
    module: str
    leaf: str
    heads: int


Spec = tuple[str, str, tuple[int, ...]]
"""A tensor of the safetensors file: name, safetensors type, shape."""


def convert(
    source: Path,
    folder: Path,
    progress: ProgressFn = lambda done, total: None,
    cancel: CancelToken | None = None,
) -> None:
    """Write the model in `source` into the empty folder `folder`; `progress` in bytes of the source.

    Raises ModelNotFound, or ModelBroken (damaged, or not supported, by name) with nothing written;
    OSError where the disk refuses; Cancelled.
    """
    with GGUFFile(source) as file:
        try:
            targets, config = plan(file)
        except (KeyError, TypeError, ZeroDivisionError) as error:
            raise ModelBroken(f"{source} lacks metadata that its architecture needs: {error}.") from error
        ends = tokenizer_gguf.end_tokens(file.metadata)
        tokenizer_config = tokenizer_gguf.write(file.metadata, folder)
        tokenizer_config["model_max_length"] = config["max_position_embeddings"]
        ids = {
            f"{name}_token_id": file.metadata[f"tokenizer.ggml.{key}_token_id"]
            for name, key in (("bos", "bos"), ("pad", "padding"))
            if f"tokenizer.ggml.{key}_token_id" in file.metadata
        }
        _write_json(folder / "tokenizer_config.json", tokenizer_config)
        _write_json(folder / "config.json", {**config, **ids, "eos_token_id": ends})
        _write_json(folder / "generation_config.json", {**ids, "eos_token_id": ends})
        _write_weights(file, targets, folder, progress, cancel or CancelToken())


def plan(file: GGUFFile) -> tuple[list[_Target], dict[str, Any]]:
    """Every tensor's target, and config.json; raises ModelBroken for what is not supported."""
    metadata, path = file.metadata, file.path
    arch = str(metadata.get("general.architecture"))
    family = FAMILIES.get(arch)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise ModelBroken(f'{path} is of the architecture "{arch}": {known} can be converted.')
    for key in ("rope.scaling.type", "expert_count"):
        if metadata.get(f"{arch}.{key}") not in (None, 0, "none"):
            raise ModelBroken(f"{path} uses {arch}.{key}, which cannot be converted.")
    tokenizer_gguf.check(metadata, path)
    targets = [_target(tensor, family, arch, file) for tensor in file.tensors]
    names = {target.module for target in targets}
    quantized = {
        t.module: quants.FORMATS[t.tensor.kind].bits for t in targets if t.tensor.kind in quants.FORMATS
    }
    config: dict[str, Any] = {
        "model_type": family.model_type,
        **family.config(metadata, arch),
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": "lm_head" not in names,
        "torch_dtype": "float32",
    }
    if quantized:
        usual = max(set(quantized.values()), key=list(quantized.values()).count)
        config["quantization"] = {"group_size": quants.GROUP, "bits": usual, "mode": "affine"} | {
            module: {"group_size": quants.GROUP, "bits": bits}
            for module, bits in sorted(quantized.items())
            if bits != usual
        }
    return targets, config


def _target(tensor: Tensor, family: Family, arch: str, file: GGUFFile) -> _Target:
    layer, top = _LAYER.match(tensor.name), _TOP.match(tensor.name)
    if layer and layer[2] in family.layer:
        module, leaf, key = f"model.layers.{layer[1]}.{family.layer[layer[2]]}", layer[3], layer[2]
    elif top and top[1] in family.top:
        module, leaf, key = family.top[top[1]], top[2], top[1]
    else:
        raise ModelBroken(f"{file.path} has the tensor {tensor.name}, which {arch} is not known to have.")
    if tensor.kind not in (*_PLAIN, *_DENSE, *quants.FORMATS):
        raise ModelBroken(f"{file.path}: {tensor.name} is of the type {tensor.kind}, which is not supported.")
    counted = family.permuted.get(key)
    heads = int(file.metadata[f"{arch}.{counted}"]) if counted else 0
    if heads and tensor.shape[0] % (2 * heads):
        raise ModelBroken(f"{file.path}: {tensor.name} does not divide into {heads} heads.")
    return _Target(tensor, module, leaf, heads)


# --------------------------------------------------------------------------------------------- weights


def _specs(target: _Target) -> list[Spec]:
    """What `_arrays` will give, before any of it is read."""
    tensor, name = target.tensor, f"{target.module}.{target.leaf}"
    format = quants.FORMATS.get(tensor.kind)
    if format is None:
        return [(name, _PLAIN.get(tensor.kind, ("F32", ""))[0], tensor.shape)]
    *rows, columns = tensor.shape
    groups = (*rows, columns // quants.GROUP)
    return [
        (name, "U32", (*rows, columns * format.bits // 32)),
        (f"{target.module}.scales", "F32", groups),
        (f"{target.module}.biases", "F32", groups),
    ]


def _arrays(file: GGUFFile, target: _Target) -> Iterator[np.ndarray[Any, Any]]:
    tensor = target.tensor
    data = file.data(tensor)
    if tensor.kind in _PLAIN:
        yield _unpermute(data.view(_PLAIN[tensor.kind][1]).reshape(tensor.shape), target.heads)
    elif tensor.kind in _DENSE:
        from gguf import GGMLQuantizationType, dequantize

        dense = dequantize(data, GGMLQuantizationType[tensor.kind])
        yield _unpermute(dense.reshape(tensor.shape), target.heads)
    else:
        packed = quants.repack(data, quants.FORMATS[tensor.kind])
        for array in (packed.weight, packed.scales, packed.biases):
            yield _unpermute(array, target.heads)


def _unpermute(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """GGUF has the two halves of a head's rotary pairs interleaved; mlx-lm has one after the other."""
    if not heads:
        return array
    pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


_ITEM = {"F32": 4, "U32": 4, "F16": 2, "BF16": 2}


def _write_weights(
    file: GGUFFile, targets: list[_Target], folder: Path, progress: ProgressFn, cancel: CancelToken
) -> None:
    """model.safetensors and its index, one tensor in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, dtype, shape in (spec for target in targets for spec in _specs(target)):
        size = int(np.prod(shape, dtype=np.int64)) * _ITEM[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    done, total = 0, sum(target.tensor.size for target in targets)
    with (folder / "model.safetensors").open("wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for target in targets:
            cancel.raise_if_cancelled()
            for array in _arrays(file, target):
                out.write(np.ascontiguousarray(array).data)
            done += target.tensor.size
            progress(done, total)
    names = {name: "model.safetensors" for name in header if name != "__metadata__"}
    _write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": at}, "weight_map": names}
    )


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
