"""`exo run --schema FILE`: what is wrong with the file is found first, whatever the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

Exo = Callable[..., Result]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe{", "is not UTF-8"),
        (b"[1, 2]", "holds no JSON schema"),
        (b'"string"', "holds no JSON schema"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_schema_is_one_sentence_and_2(
    exo: Exo, tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes(content)
    result = exo("run", "--schema", str(path), "--no-stdin", "hi")
    assert (result.code, result.out) == (2, "")
    assert words in result.err and str(path) in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["absent.json", "."])
def test_a_file_that_cannot_be_read_is_one_sentence_and_2(exo: Exo, tmp_path: Path, name: str) -> None:
    result = exo("run", "--schema", str(tmp_path / name), "--no-stdin", "hi")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "cannot be read" in result.err
