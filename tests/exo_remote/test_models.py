"""Which model is meant, and what is remembered of servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from exocli import ModelNotFound, cache_dir

from exo_remote import models
from exo_remote.opening import ask as ask_for_names
from exo_remote.options import Options
from tests.exo_remote.asking import opened
from tests.exo_remote.upstream import Upstream

NAMES = ["qwen3:4b", "org/llama", "models/gemini", "tuned-*"]


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("qwen3:4b", "qwen3:4b"),
        ("org/llama", "org/llama"),
        ("llama", "org/llama"),
        ("gemini", "models/gemini"),
        ("tuned-7", "tuned-7"),
        ("", "qwen3:4b"),
        ("remote", "qwen3:4b"),
    ],
)
def test_which_is_meant(wanted: str, meant: str):
    assert models.pick(wanted, NAMES, "http://x") == meant


def test_ollamas_latest():
    assert models.pick("llama", ["llama:latest"], "http://x") == "llama:latest"
    assert models.pick("llama:latest", ["llama"], "http://x") == "llama"


def test_a_wrong_name_says_which_exist():
    with pytest.raises(ModelNotFound, match=r'http://x has no model "qwen3:4"') as caught:
        models.pick("qwen3:4", NAMES, "http://x")
    assert 'did you mean "qwen3:4b"?' in str(caught.value) and "org/llama" in str(caught.value)
    with pytest.raises(ModelNotFound, match="n11 and 88 more"):
        models.pick("z", [f"n{i}" for i in range(100)], "http://x")


def test_a_server_that_lists_nothing_or_answers_to_any_name():
    assert models.pick("z", [], "http://x") == "z"
    assert models.pick("", [], "http://x") == "default"
    assert models.pick("z", ["a"], "http://x", any_model=True) == "z"
    with pytest.raises(ModelNotFound, match="choose one with -m: a-"):
        models.pick("", ["a-*"], "http://x")


async def test_the_engine_refuses_a_wrong_name(tmp_path: Path):
    async with Upstream(models=[{"id": "one"}, {"id": "two"}]) as up:
        with pytest.raises(ModelNotFound, match="it has: one, two"):
            async with opened(up.url, tmp_path, "three"):
                pass


async def test_what_was_seen_is_kept(tmp_path: Path):
    async with Upstream(models=[{"id": "one", "owned_by": "vllm"}, {"id": "two"}]) as up:
        folder = cache_dir("remote")
        assert await asyncio.to_thread(ask_for_names, Options(url=f"{up.url}/v1/"), folder) == ("one", "two")
        url = up.url
    found = list(models.catalog().models())
    assert [(info.name, info.source) for info in found] == [("one", url), ("two", url)]
    assert found[0].details["dialect"] == "vllm" and found[0].details["cancel"] == "close"
    models.remember(folder, "http://other", ["x"], {})
    assert len(models.seen(folder)) == 2


def test_a_cache_that_is_broken_or_cannot_be_written(tmp_path: Path):
    (tmp_path / "servers.json").write_text("[")
    assert models.seen(tmp_path) == {}
    (tmp_path / "servers.json").write_text("[1]")
    assert models.seen(tmp_path) == {}
    (tmp_path / "servers.json").write_text('{"a": 1, "b": {}}')
    assert models.seen(tmp_path) == {"b": {}}
    models.remember(tmp_path / "servers.json" / "x", "http://x", ["m"], {})
