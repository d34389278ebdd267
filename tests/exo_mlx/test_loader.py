"""Loading a model folder: what comes out, and one sentence for everything that can be wrong with one."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from exocli import ModelBroken, ModelNotFound, OutOfMemory
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from exo_mlx import folder, gguf, loader, memory
from tests.exo_mlx import tiny

PROMPT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("quantized")
    tiny.write_gguf(base / "m.gguf", "Q4_1")
    (base / "model").mkdir()
    gguf.convert(base / "m.gguf", base / "model")
    return base / "model"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.write_folder(tmp_path / "model", "bfloat16")


def logits(loaded: loader.Loaded) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    tokens = mx.array([loaded.tokenizer.encode("hello hello")])
    return np.array(loaded.model(tokens).astype(mx.float32))


def test_on_the_cpu_everything_becomes_float32(model: Path) -> None:
    seen: list[tuple[int, int]] = []
    loaded = loader.load(model, progress=lambda done, total: seen.append((done, total)))
    assert loaded.dtype == "float32"
    assert {a.dtype for _, a in tree_flatten(loaded.model.parameters())} == {mx.float32}
    assert loaded.model(mx.array([[5]])).dtype == mx.float32
    assert loaded.nbytes == 4 * sum(int(a.size) for a in tiny.weights().values())
    assert seen[-1] == (loaded.nbytes, loaded.nbytes)


def test_kept_as_it_is_if_asked(model: Path, quantized: Path) -> None:
    assert loader.load(model, cpu_dtype="keep").dtype == "bfloat16"
    assert loader.load(quantized, cpu_dtype="keep").dtype == "4-bit"


def test_dequantized_weights_give_the_quantized_model(quantized: Path) -> None:
    packed, plain = loader.load(quantized, cpu_dtype="keep"), loader.load(quantized)
    assert plain.dtype == "float32"
    assert np.allclose(logits(packed), logits(plain), atol=1e-4)


def test_what_an_engine_must_know(model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [0], "temperature": 0.3}))
    loaded = loader.load(model)
    assert loaded.end_tokens == frozenset({0, 2})
    assert loaded.context == 512
    assert loaded.generation_config["temperature"] == 0.3
    text = loaded.tokenizer.apply_chat_template(PROMPT, tokenize=False)
    assert text == "<|im_start|>user\nhello<|im_end|>\n"


def test_a_gguf_file_is_loaded_where_it_is(tmp_path: Path, home: Path) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", "Q8_0")
    first = loader.load(tmp_path / "m.gguf")
    stamp = (first.path / "config.json").stat().st_mtime_ns
    second = loader.load(tmp_path / "m.gguf")
    assert first.path.is_relative_to(home / "cache") and second.path == first.path
    assert (second.path / "config.json").stat().st_mtime_ns == stamp, "converted once"


# ------------------------------------------------------------------------------------- what can be wrong


def broken(path: Path) -> str:
    with pytest.raises(ModelBroken) as caught:
        loader.load(path)
    message = caught.value.message
    assert str(path) in message or path.name in message
    assert "\n" not in message and message.endswith((".", ")"))
    return message


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no model folder"):
        loader.load(tmp_path / "none")


def test_no_config_no_tokenizer_no_weights(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model.bin")
    assert "no weights" in broken(model) and "model.bin" in broken(model)
    (model / "tokenizer.json").unlink()
    assert "no tokenizer" in broken(model)
    (model / "config.json").unlink()
    assert "no config.json" in broken(model)


def test_a_missing_shard_is_named(model: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00001-of-00002.safetensors" in broken(model)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model_type": 3}', "\udcff"])
def test_a_config_that_is_none(model: Path, text: str) -> None:
    (model / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    broken(model)


def test_an_unknown_architecture_is_named(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "xenon9"}))
    assert '"xenon9"' in broken(model)


@pytest.mark.parametrize("change", [{"hidden_size": None}, {"hidden_size": 128}, {"num_hidden_layers": 3}])
def test_a_config_that_does_not_fit_the_weights(model: Path, change: dict[str, int | None]) -> None:
    config = {**json.loads((model / "config.json").read_text()), **change}
    (model / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    broken(model)


def test_a_damaged_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"model": 1}')
    assert "tokenizer" in broken(model)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_safetensors_cut_or_grown_anywhere(
    data: st.DataObject, quantized: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = (quantized / "model.safetensors").read_bytes()
    path = tmp_path_factory.mktemp("cut") / "model.safetensors"
    length = data.draw(st.one_of(st.integers(0, 64), st.integers(0, len(content) - 1)))
    path.write_bytes(content[:length])
    with pytest.raises(ModelBroken):
        folder.check_safetensors(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ModelBroken):
        folder.check_safetensors(path)


@settings(max_examples=60, deadline=None)
@given(junk=st.binary(min_size=0, max_size=300))
def test_junk_is_no_safetensors(junk: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("junk") / "model.safetensors"
    path.write_bytes(len(junk).to_bytes(8, "little") + junk)
    try:
        folder.check_safetensors(path)
    except ModelBroken:
        return
    header = json.loads(junk)
    assert isinstance(header, dict) and not header


def test_code_that_a_model_brings_is_not_run(model: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (model / "evil.py").write_text(
        f"open({str(marker)!r}, 'w').close()\nclass Model: pass\nModelArgs = Tok = Model"
    )
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    for config, extra in (
        ({"model_file": "evil.py"}, {}),
        ({}, {"auto_map": {"AutoTokenizer": ["evil.Tok", None]}, "tokenizer_class": "Tok"}),
    ):
        base = json.loads((model / "config.json").read_text())
        base.pop("model_file", None)
        (model / "config.json").write_text(json.dumps({**base, **config}))
        (model / "tokenizer_config.json").write_text(json.dumps({**tokenizer, **extra}))
        with contextlib.suppress(ModelBroken):
            loader.load(model)
        assert not marker.exists()


# ------------------------------------------------------------------------------------------------ memory


def test_what_does_not_fit_is_refused_with_the_numbers(quantized: Path) -> None:
    with pytest.raises(OutOfMemory) as caught:
        loader.load(quantized, limit=10**8)
    assert caught.value.details["available"] == 10**8 < caught.value.details["needed"]
    assert "100 MB" in caught.value.message and "--force" in caught.value.message
    assert loader.load(quantized, limit=10**8, force=True).dtype == "4-bit"


def test_auto_keeps_the_weights_when_only_they_fit(quantized: Path) -> None:
    sizes = [loader.load(quantized, cpu_dtype=kind).nbytes for kind in ("keep", "float32")]
    between = sum(sizes) // 2 + memory.OVERHEAD
    loaded = loader.load(quantized, limit=between)
    assert loaded.dtype == "4-bit" and "float32" in loaded.notes[0]
    with pytest.raises(OutOfMemory):
        loader.load(quantized, cpu_dtype="float32", limit=between)


def test_the_default_model(smollm2: Path) -> None:
    loaded = loader.load(smollm2, cpu_dtype="keep")
    assert loaded.end_tokens == {0, 2} and loaded.context == 8192 and loaded.dtype == "4-bit"
    assert loaded.tokenizer.has_chat_template


def test_loading_does_not_touch_the_folder(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    loader.load(model)
    assert sorted(p.name for p in model.iterdir()) == sorted(p.name for p in copy.iterdir())
