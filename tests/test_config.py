"""config.toml: read once, written whole, comments kept, errors that name the file."""

from __future__ import annotations

import stat
import threading
import tomllib
from pathlib import Path

import pytest
from exocli import config
from exocli.errors import UsageError
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EXO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write(home: Path, text: str) -> Path:
    home.mkdir(exist_ok=True)
    path = home / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_lives_below_exo_home(home):
    for path in (config.config_path(), config.models_dir(), config.data_dir("logs"), config.cache_dir("x")):
        assert path.is_relative_to(home)


def test_without_it_the_platforms_folders_are_used(monkeypatch, tmp_path):
    monkeypatch.delenv("EXO_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert config.config_path().is_relative_to(tmp_path)
    assert config.config_path().name == "config.toml"
    assert len({config.config_path().parent, config.models_dir(), config.cache_dir("x")}) == 3


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), ("on", True), ("Yes", True), ("", False), ("0", False)]
)
def test_a_switch_in_the_environment(monkeypatch, value, on):
    monkeypatch.setenv("EXO_OFFLINE", value)
    assert config.offline() is on


def test_what_is_no_switch_is_told_so_and_not_taken_for_off(monkeypatch):
    monkeypatch.setenv("EXO_OFFLINE", "ture")
    with pytest.raises(UsageError, match="EXO_OFFLINE"):
        config.offline()


def test_no_file_is_an_empty_config(home):
    assert config.load() == {} and config.get("a.b", 7) == 7 and config.text() == ""


def test_reading_by_dotted_key(home):
    write(home, '[backends.mlx]\nchunk = 64\n[models.fast]\nmodel = "x/y"\n')
    assert config.get("backends.mlx.chunk") == 64
    assert config.get("backends.mlx.chunk.deeper") is None
    assert config.get("models.fast") == {"model": "x/y"}


def test_a_change_of_the_file_is_seen(home):
    import os

    path = write(home, "a = 1\n")
    assert config.get("a") == 1
    path.write_text("a = 2\n")
    os.utime(path, ns=(1, 1))
    assert config.get("a") == 2


@pytest.mark.parametrize("data", [b"a = \n", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_broken_file_is_named_and_never_overwritten(home, data):
    home.mkdir()
    path = home / "config.toml"
    path.write_bytes(data)
    for attempt in (config.load, config.text, lambda: config.set_value("b", 1), lambda: config.unset("b")):
        with pytest.raises(UsageError, match=r"config\.toml"):
            attempt()
    assert path.read_bytes() == data


def test_setting_keeps_comments_and_order(home):
    path = write(home, '# mine\nmodel = "a" # why\n\n[backends.mlx]\nchunk = 64\n')
    config.set_value("model", "b")
    config.set_value("backends.mlx.chunk", 128)
    config.set_value("sampling.temperature", 0.5)
    text = path.read_text()
    assert text.startswith('# mine\nmodel = "b" # why\n\n[backends.mlx]\nchunk = 128\n')
    assert tomllib.loads(text)["sampling"] == {"temperature": 0.5}
    assert config.get("model") == "b"


def test_unset(home):
    config.set_value("models.x.model", "a/b")
    assert config.unset("models.x.model") and not config.unset("models.x.model")
    assert not config.unset("no.such.key")
    config.set_value("a", 1)
    config.set_value("a", None)
    assert config.get("a") is None


def test_a_part_that_is_no_table_is_named(home):
    config.set_value("model", "a")
    with pytest.raises(UsageError, match=r'"model" .* is not a table'):
        config.set_value("model.deeper", 1)


def test_only_the_owner_may_read_it(home):
    config.set_value("a", 1)
    assert stat.S_IMODE(config.config_path().stat().st_mode) == 0o600


def test_a_link_stays_a_link(home, tmp_path):
    real = tmp_path / "dotfiles.toml"
    real.write_text("a = 1\n")
    home.mkdir()
    (home / "config.toml").symlink_to(real)
    config.set_value("a", 2)
    assert (home / "config.toml").is_symlink() and real.read_text() == "a = 2\n"


def test_writers_at_the_same_time_lose_nothing(home):
    keys = [f"sampling.k{n}" for n in range(20)]
    threads = [threading.Thread(target=config.set_value, args=(key, 1)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(config.get("sampling")) == {f"k{n}" for n in range(20)}
    assert sorted(p.name for p in home.iterdir()) == ["config.lock", "config.toml"]


def test_a_home_that_cannot_be_made_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXO_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(UsageError, match="cannot be written: Not a directory; EXO_HOME names another"):
        config.set_value("a", 1)
    assert config.load() == {} and config.text() == ""


def test_a_file_that_is_there_and_cannot_be_reached_is_not_taken_for_none(home):
    home.mkdir()
    (home / "config.toml").symlink_to(home / "config.toml")
    with pytest.raises(UsageError, match="cannot be read: Too many levels"):
        config.load()


def test_hidden_values(home):
    write(home, '[backends.r]\napi_key = "sk-1" # the work one\nurl = "u"\n')
    text = config.text(lambda key: key == "api_key")
    assert "sk-1" not in text and 'url = "u"' in text and "# the work one" in text
    assert "sk-1" in config.text()


@pytest.mark.parametrize(
    ("name", "value", "off"),
    [("EXO_OFFLINE", "1", True), ("HF_HUB_OFFLINE", "true", True), ("EXO_OFFLINE", "0", False)],
)
def test_offline(monkeypatch, name, value, off):
    monkeypatch.delenv("EXO_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv(name, value)
    assert config.offline() is off


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_as_it_was_set(tmp_path_factory, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXO_HOME", str(tmp_path_factory.mktemp("h")))
        config.set_value("system", value)
        assert tomllib.loads(config.config_path().read_text(encoding="utf-8"))["system"] == value
