"""The encoder against BERT in numpy, on the real model and on small ones of every kind that is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from exocli import ModelBroken
from mlx.utils import tree_flatten

from exo_mlx import bert, sentence
from exo_mlx.encoder import Encoder, Texts, shorten
from tests.exo_mlx import encoders

TEXTS = [
    "A man is eating food.",
    "",
    "The weather is lovely — ünïcödé 漢字 😀 \u200b",
    "Someone has a meal.",
    "The stock market fell by three per cent on Tuesday, and nobody was surprised. " * 3,
]
SHORT = ["abc", "", "hello world 42", "zz top " * 3]
CLOSE = 1e-4


def opened(path: Path, **settings: Any) -> tuple[sentence.Sentence, Texts, Encoder]:
    found = sentence.read(path)
    return found, Texts(path, found, found.limit), Encoder(path, found, **settings)


def test_the_real_model_gives_the_vectors_that_numpy_gives(minilm: Path) -> None:
    found, texts, encoder = opened(minilm)
    assert (found.width, found.limit, found.pooling, found.normalize) == (384, 256, "mean", True)
    weights, config = encoders.read_weights(minilm), dict(found.config)
    ids = texts.encode(TEXTS, truncate=False)
    vectors = encoder.vectors(ids)  # of unlike lengths, so all but one are padded
    assert len({len(one) for one in ids}) > 3 and vectors.dtype == np.float32
    for one, vector in zip(ids, vectors, strict=True):
        expected = encoders.unit(encoders.forward(weights, config, one).mean(axis=0))
        assert np.abs(expected - vector).max() < CLOSE and expected @ vector > 1 - CLOSE
        assert np.abs(encoder.vectors([one])[0] - vector).max() < 1e-6, "alone as in a batch"
    near, far = vectors[0] @ vectors[3], vectors[0] @ vectors[4]
    assert near > 0.6 > 0.2 > far, "a meal is nearer to food than the stock market"


POOLED: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "pooling_mode_mean_tokens": lambda x: x.mean(axis=0),
    "pooling_mode_cls_token": lambda x: x[0],
    "pooling_mode_max_tokens": lambda x: x.max(axis=0),
    "pooling_mode_mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / np.sqrt(len(x)),
}


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_every_pooling_of_every_encoder(tmp_path: Path, kind: str, pooling: str) -> None:
    more = {"pad_token_id": 1, "type_vocab_size": 1} if kind == "xlm-roberta" else {}
    flags = {name: name == pooling for name in POOLED}
    path = encoders.write_folder(tmp_path / "model", pooling=flags, model_type=kind, **more)
    found, texts, encoder = opened(path)
    assert found.limit == (38 if kind == "xlm-roberta" else 40) and not found.normalize
    weights, ids = encoders.read_weights(path), texts.encode(SHORT, truncate=False)
    for one, vector in zip(ids, encoder.vectors(ids), strict=True):
        expected = POOLED[pooling](encoders.forward(weights, dict(found.config), one))
        assert np.abs(expected - vector).max() < CLOSE


@pytest.mark.parametrize("how", ["prefixed", "TensorFlow", "float16", "sharded"])
def test_weights_in_other_forms_give_the_same(tmp_path: Path, how: str) -> None:
    path = encoders.write_folder(tmp_path / "model")
    _, texts, encoder = opened(path)
    ids = texts.encode(SHORT, truncate=False)
    before = encoder.vectors(ids)
    stored: dict[str, Any] = mx.load(str(path / "model.safetensors"))  # type: ignore[assignment]
    mx.eval(stored)
    if how == "prefixed":
        stored = {f"bert.{name}": array for name, array in stored.items()} | {"cls.bias": mx.zeros(3)}
    elif how == "TensorFlow":
        names = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for new, old in names:
            stored = {name.replace(new, old): array for name, array in stored.items()}
    elif how == "float16":
        stored = {name: array.astype(mx.float16) for name, array in stored.items()}
    halves = [dict(list(stored.items())[part::2]) for part in (0, 1)] if how == "sharded" else [stored]
    (path / "model.safetensors").unlink()
    for number, half in enumerate(halves):
        name = f"model-{number + 1:05d}-of-00002.safetensors" if len(halves) > 1 else "model.safetensors"
        mx.save_safetensors(str(path / name), half)
    _, _, again = opened(path)
    assert again.dtype == "float32", "on the CPU the BLAS wants it so"
    tolerance = 2e-2 if how == "float16" else 1e-6
    assert np.abs(again.vectors(ids) - before).max() < tolerance


def test_quantized_weights(tmp_path: Path) -> None:
    """As MLX's converters write them: packed where there are scales, and the config says how."""
    path = encoders.write_folder(tmp_path / "model", quantization={"group_size": 32, "bits": 8})
    config = json.loads((path / "config.json").read_text())
    plain = {name: mx.array(array) for name, array in encoders.read_weights(path).items()}
    packed: dict[str, mx.array] = {}
    for name, array in plain.items():
        if name.endswith("_embeddings.weight") and array.shape[1] % 32 == 0:
            weight, scales, biases = mx.quantize(array, 32, 8)
            stem = name.removesuffix(".weight")
            packed |= {name: weight, f"{stem}.scales": scales, f"{stem}.biases": biases}
            plain[name] = mx.dequantize(weight, scales, biases, 32, 8)
        else:
            packed[name] = array
    mx.save_safetensors(str(path / "model.safetensors"), packed)
    _, texts, encoder = opened(path)
    weights = {name: np.array(array) for name, array in plain.items()}
    ids = texts.encode(SHORT, truncate=False)
    for one, vector in zip(ids, encoder.vectors(ids), strict=True):
        assert np.abs(encoders.forward(weights, config, one).mean(axis=0) - vector).max() < CLOSE


def test_gelu_is_gelu_wherever_it_is_computed() -> None:
    x = mx.concatenate([mx.linspace(-12, 12, 100_001), mx.array([-1e30, -1e4, 0.0, 1e4, 1e30])])
    assert float(mx.abs(bert._gelu(x)[:-5] - nn.gelu(x)[:-5]).max()) < 3e-6
    assert bert._gelu(x)[-5:].tolist()[2:] == pytest.approx([0.0, 1e4, 1e30], rel=1e-6)
    assert bool(mx.all(mx.isfinite(bert._gelu(x))))


# --------------------------------------------------------------------------------------------- texts


def test_texts_become_the_ids_that_the_library_alone_gives(minilm: Path) -> None:
    from tokenizers import Tokenizer

    found = sentence.read(minilm)
    alone = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    alone.no_padding()
    alone.enable_truncation(found.limit)
    long = "word " * 400
    for text in (*TEXTS, long):
        assert Texts(minilm, found, found.limit).encode([text], truncate=True) == [alone.encode(text).ids]
    uncut, cut = (Texts(minilm, found, 9).encode([long], truncate=cut)[0] for cut in (False, True))
    assert (len(uncut), len(cut), cut[-1]) == (402, 9, uncut[-1])


def test_vectors_may_be_shortened_where_the_model_was_made_for_it(tmp_path: Path) -> None:
    plain = sentence.read(encoders.write_folder(tmp_path / "plain"))
    assert [plain.check_dimensions(n) for n in (32, 16, 64, 0)] == [True, False, False, False]
    some = sentence.read(encoders.write_folder(tmp_path / "some", matryoshka_dimensions=[8, 16]))
    assert [some.check_dimensions(n) for n in (32, 16, 12)] == [True, True, False]
    any_ = sentence.read(encoders.write_folder(tmp_path / "any", is_matryoshka=True))
    assert [any_.check_dimensions(n) for n in (32, 12, 33)] == [True, True, False]
    vector = np.array([3.0, 4.0, 12.0], np.float32)
    assert shorten(vector, 2, True).tolist() == pytest.approx([0.6, 0.8])
    assert shorten(vector, 2, False).tolist() == [3.0, 4.0]


# ------------------------------------------------------------------------------------------ refusals


def damaged(path: Path, name: str, data: Any) -> Path:
    (path / name).write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("modules.json", [{"path": "2_Dense", "type": "x.Dense"}], "module Dense"),
        ("modules.json", "[1", "cannot be read"),
        ("1_Pooling/config.json", {"pooling_mode_lasttoken": True}, "pooling_mode_lasttoken"),
        ("1_Pooling/config.json", dict.fromkeys(POOLED, True), "mean and cls"),
        ("config.json", {"model_type": "bert"}, "config.json"),
        ("tokenizer.json", "{}", "tokenizer.json"),
    ],
)
def test_what_would_be_computed_in_another_way_is_refused_by_name(
    tmp_path: Path, name: str, data: Any, words: str
) -> None:
    path = damaged(encoders.write_folder(tmp_path / "model"), name, data)
    with pytest.raises(ModelBroken, match=words) as caught:
        opened(path)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_act": "swish"},
        {"position_embedding_type": "relative_key"},
        {"num_attention_heads": 5},
        {"num_hidden_layers": 3},
        {"vocab_size": 65},
    ],
)
def test_a_config_that_does_not_fit_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    path = encoders.write_folder(tmp_path / "model")
    settings = json.loads((path / "config.json").read_text())
    damaged(path, "config.json", {**settings, **config})
    with pytest.raises(ModelBroken, match="cannot be loaded"):
        opened(path)


def test_a_plain_bert_folder_means_the_mean(tmp_path: Path) -> None:
    path = encoders.write_folder(tmp_path / "model")
    (path / "modules.json").unlink()
    (path / "1_Pooling" / "config.json").unlink()
    assert sentence.is_sentence_model(path) and not sentence.is_sentence_model(tmp_path)
    found = sentence.read(path)
    assert (found.pooling, found.normalize) == ("mean", False)


def test_the_parts_have_the_shapes_that_the_config_says() -> None:
    model = bert.Encoder({"type_vocab_size": 2, **encoders.SHAPE})
    names = {name for name, _ in tree_flatten(model.parameters())}
    kept = {bert.rename(name) for name in encoders.random_weights({"type_vocab_size": 2, **encoders.SHAPE})}
    assert names == kept - {None}
