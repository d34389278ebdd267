"""An embedding model ready to use: texts → token ids on one thread, token ids → vectors on another.

Loads the folder that sentence.py describes into the encoder of bert.py. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from exocli import ModelBroken, ProgressFn
from tokenizers import Tokenizer

from exo_mlx import bert, folder, memory, sentence, weights


class Texts:
    """The tokenizer. `limit`: tokens of a text, the special ones included."""

    def __init__(self, path: Path, found: sentence.Sentence, limit: int) -> None:
        """Raises ModelBroken."""
        try:
            self._tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        except Exception as error:  # the library raises a bare Exception
            text = " ".join(str(error).split())
            raise ModelBroken(f"{path / 'tokenizer.json'} cannot be used: {text[:200]}.") from error
        # What the file says of lengths is how it was last used, not what the model can do.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._lower = found.lower
        self._special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        self.limit = limit

    def encode(self, texts: Sequence[str], truncate: bool) -> list[list[int]]:
        """The ids of each text with the special tokens around them, cut to `limit` if asked for."""
        prepared = [text.strip().lower() if self._lower else text.strip() for text in texts]
        found = []
        for encoding in self._tokenizer.encode_batch(prepared, add_special_tokens=False):
            if truncate:
                encoding.truncate(max(0, self.limit - self._special))
            found.append(list(self._tokenizer.post_process(encoding).ids))
        return found


class Encoder:
    """The model. `dtype` and `nbytes` of its weights; `notes` for a person."""

    def __init__(
        self,
        path: Path,
        found: sentence.Sentence,
        *,
        cpu_dtype: weights.CpuDtype = "auto",
        force: bool = False,
        progress: ProgressFn = lambda done, total: None,
    ) -> None:
        """Raises ModelBroken, and OutOfMemory unless `force`."""
        self._found = found
        self._model = _open(path, found)
        to_float32, self.notes = weights.settle(self._model, path.name, cpu_dtype, memory.available(), force)
        weights.bring(self._model, to_float32, progress)
        self.dtype = weights.dtype_of(self._model)
        self.nbytes = weights.nbytes(self._model)

    def vectors(self, texts: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
        """(texts, width) float32, from token ids, of which each text has at least one."""
        longest = max(map(len, texts))
        tokens = np.zeros((len(texts), longest), np.uint32)
        real = np.zeros((len(texts), longest), np.bool_)
        for row, ids in enumerate(texts):
            tokens[row, : len(ids)] = ids
            real[row, : len(ids)] = True
        mask = None if real.all() else mx.array(real)
        pooled = bert.pool(self._model(mx.array(tokens), mask), mask, self._found.pooling)
        pooled = pooled.astype(mx.float32)
        return np.array(bert.unit(pooled) if self._found.normalize else pooled)


def shorten(vector: np.ndarray[Any, Any], dimensions: int, normalize: bool) -> np.ndarray[Any, Any]:
    """The first `dimensions` numbers, of length 1 again if they were. (Kusupati et al. 2022, arXiv
    2205.13147: only for models that were trained for it.)"""
    if dimensions == len(vector):
        return vector
    cut = vector[:dimensions]
    return cut / max(float(np.linalg.norm(cut)), 1e-12) if normalize else cut


def _open(path: Path, found: sentence.Sentence) -> bert.Encoder:
    """The model with its weights still on disk."""
    files = folder.inspect(path).weights
    try:
        read: dict[str, mx.array] = {}
        for file in files:
            stored: Any = mx.load(str(file))
            read |= {ours: array for name, array in stored.items() if (ours := bert.rename(name))}
        model = bert.Encoder(found.config, found.first_position)
        if quantization := found.config.get("quantization"):
            _quantize(model, quantization, read)
        model.load_weights(list(read.items()))
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ModelBroken(f"The model {path} cannot be loaded: {first[:200]}.") from error
    model.eval()
    return model


def _quantize(model: bert.Encoder, settings: Mapping[str, Any], read: Mapping[str, mx.array]) -> None:
    """As MLX's converters do it: whatever has scales is packed."""
    nn.quantize(
        model,
        group_size=int(settings["group_size"]),
        bits=int(settings["bits"]),
        class_predicate=lambda name, module: f"{name}.scales" in read,
    )
