"""`exo config`: what may be set is checked, secrets are neither taken nor shown."""

from __future__ import annotations

import json

import pytest


def test_set_get_show_unset(exo, home):
    assert exo("config", "path").out == f"{home / 'config.toml'}\n"
    empty = exo("config", "show")
    assert (empty.code, empty.out) == (0, "") and "Nothing is set" in empty.err
    for key, value in (
        ("model", "tiny"),
        ("sampling.temperature", "0.5"),
        ("sampling.presence_penalty", "-0.5"),
        ("backends.sample.shout", "yes"),
        ("models.mine.model", "org/name"),
        ("models.mine.options.depth", "3"),
        ("plugins.disabled", "a, b"),
    ):
        assert exo("config", "set", key, value).code == 0, key
    assert json.loads(exo("config", "show", "--json").out) == {
        "model": "tiny",
        "sampling": {"temperature": 0.5, "presence_penalty": -0.5},
        "backends": {"sample": {"shout": True}},
        "models": {"mine": {"model": "org/name", "options": {"depth": 3}}},
        "plugins": {"disabled": ["a", "b"]},
    }
    assert exo("config", "get", "model").out == "tiny\n"
    assert exo("config", "get", "model", "--json").out == '"tiny"\n'
    assert exo("config", "get", "sampling.temperature").out == "0.5\n"
    assert exo("config", "unset", "model").code == 0
    for args in (("get", "model"), ("unset", "model")):
        result = exo("config", *args)
        assert (result.code, result.err) == (1, 'exo: "model" is not set.\n')


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("modle", "x", "did you mean model"),
        ("model.x", "x", "without parts"),
        ("", "x", "There is no setting"),
        ("sampling", "x", "sampling.NAME"),
        ("sampling.warmth", "1", "temperature"),
        ("sampling.temperature", "hot", "a number"),
        ("sampling.temperature", "-3", "x>=0"),
        ("sampling.top_p", "7", "x<=1"),
        ("sampling.repetition_penalty", "0", "x>0"),
        ("sampling.frequency_penalty", "3", "x<=2"),
        ("sampling.logit_bias", "3", "with a request"),
        ("models.mine.sampling.min_p", "2", "x<=1"),
        ("model", "", "config unset model"),
        ("backends.sample", "x", "backends.NAME.OPTION"),
        ("backends.sample.volume", "1", "shout"),
        ("backends.sample.shout", "loud", "true or false"),
        ("models.mine", "x", "models.NAME.model"),
        ("models.mine.size", "x", "models.NAME.model"),
        ("plugins.enabled", "x", "plugins.disabled"),
        ("backends.sample.api_key", "sk-123", "secret"),
    ],
)
def test_what_cannot_be_set_is_one_sentence_and_writes_nothing(exo, home, key, value, word):
    result = exo("config", "set", key, value)
    assert (result.code, result.out) == (2, "")
    assert word in result.err and result.err.count("\n") == 1
    assert "sk-123" not in result.err
    assert not (home / "config.toml").exists()


def test_an_unknown_backend_is_named(exo):
    for key in ("backends.nobody.x", "backend", "models.mine.backend"):
        result = exo("config", "set", key, "nobody")
        assert result.code == 3 and '"nobody"' in result.err


def test_secrets_in_the_file_are_hidden(exo, home):
    home.mkdir()
    (home / "config.toml").write_text('[backends.r]\napi_key = "sk-123" # work\nurl = "u"\nmax_tokens = 5\n')
    for args in (["show"], ["show", "--json"], ["show", "-v"]):
        out = exo("config", *args).out
        assert "sk-123" not in out and "u" in out and "5" in out
    assert exo("config", "get", "backends.r.api_key").out == "sk-123\n"


def test_a_home_that_cannot_be_written(exo, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXO_HOME", str(tmp_path / "file"))
    result = exo("config", "set", "model", "tiny")
    assert result.code == 2 and "cannot be written" in result.err and result.err.count("\n") == 1
