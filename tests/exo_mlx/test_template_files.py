"""Where a chat template is found, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exocli import ModelBroken, ModelNotFound

from exo_mlx import loader, models, template_files
from tests.exo_mlx import tiny

MESSAGES = [{"role": "user", "content": "hi"}]
OTHER = "<{{ messages[0]['content'] }}>"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model folder without a template."""
    folder = tiny.write_folder(tmp_path / "base")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def rendered(path: Path, option: Path | None = None) -> str:
    tokenizer = loader.load(path, chat_template=option).tokenizer
    return str(tokenizer.apply_chat_template(MESSAGES, tokenize=False))


def test_a_base_model_says_what_to_do(base: Path) -> None:
    loaded = loader.load(base)
    assert not loaded.tokenizer.has_chat_template
    assert "-o chat_template=FILE" in loaded.notes[0]


def test_every_kind_of_side_file_is_picked_up(base: Path) -> None:
    (base / "chat_template.json").write_text(json.dumps({"chat_template": OTHER}))
    assert rendered(base) == "<hi>"
    (base / "chat_template.jinja").write_text("jinja " + OTHER)
    assert rendered(base) == "jinja <hi>"


def test_the_option_replaces_the_model_s_own(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    (tmp_path / "own.jinja").write_text(OTHER)
    assert rendered(folder) == "<|im_start|>user\nhi<|im_end|>\n"
    assert rendered(folder, tmp_path / "own.jinja") == "<hi>"


def test_a_gguf_file_takes_what_lies_beside_it(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "m.gguf"
    tiny.write_gguf(source, "Q8_0", tokenizer__chat_template=None)
    assert not loader.load(source).tokenizer.has_chat_template
    named = {"chat_template": [{"name": "tools", "template": "x"}, {"name": "default", "template": OTHER}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    assert rendered(source) == "<hi>", "also when it was converted before"
    (tmp_path / "m.jinja").write_text("its own " + OTHER)
    assert rendered(source) == "its own <hi>"
    info = models.source().import_file(source, "m", lambda done, total: None)
    (tmp_path / "m.jinja").unlink()
    assert rendered(Path(info.path)) == "its own <hi>", "an import keeps it"


def test_what_is_no_template_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.jinja"):
        template_files.read(tmp_path / "none.jinja")
    (tmp_path / "empty.jinja").write_text("")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe")
    for name, words in (
        ("empty.jinja", "no chat_template"),
        ("other.json", "no chat_template"),
        ("binary.jinja", "cannot be read"),
    ):
        with pytest.raises(ModelBroken, match=words):
            template_files.read(tmp_path / name)
