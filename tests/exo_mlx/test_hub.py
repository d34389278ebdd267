"""Models of the hub, against a server that speaks as much of its API as a download needs.

huggingface_hub reads its settings when it is imported, so pulls run in a process of their own: in one for all
tests that have no settings of their own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.exo_mlx import tiny
from tests.exo_mlx.conftest import environment
from tests.exo_mlx.servers import Files, serving

OUTSIDE = ("EXO_OFFLINE", "HF_HUB_OFFLINE", "HF_TOKEN")
REPO, COMMIT = "org/tiny", "a" * 40
ACTIONS = """
import json, sys
from exocli import CancelToken, Cancelled, ExoError, ModelRef
from exo_mlx.models import source
def answer(revision, *actions):
    s, cancel, seen, answers = source(), CancelToken(), [], []
    def progress(done, total):
        seen.append((done, total))
        if "stop" in actions: cancel.cancel()
    ref = ModelRef(kind="hub", name="org/tiny", revision=revision or None)
    for action in actions:
        try:
            if action == "pull": answers.append(s.pull(ref, progress, cancel).path)
            if action == "size": answers.append(s.download_size(ref))
            if action == "locate": answers.append(str(s.locate(ref)))
            if action == "models": answers.append([m.name for m in s.models()])
            if action == "remove": answers.append(s.remove(ref))
            if action == "seen": answers.append([seen[-1], sorted(seen) == seen])
        except (ExoError, Cancelled) as error:
            answers.append([type(error).__name__, str(error)])
    return answers
for line in sys.stdin:
    print(json.dumps(answer(*json.loads(line))), flush=True)
"""


class Puller:
    """A process that does what it is told, a line at a time."""

    def __init__(self, errors: Path, **env: str) -> None:
        self._errors = errors
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", ACTIONS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment(HF_HUB_DISABLE_XET="1", **env),
                text=True,
            )

    def __call__(self, *actions: str, revision: str = "") -> list[Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([revision, *actions]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert self._errors.read_text() == "", "no bar and no warning of another's"
        answers: list[Any] = json.loads(line)
        return answers

    def end(self) -> None:
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny.write_folder(tmp_path_factory.mktemp("hub") / "tiny")
    (path / "modeling.py").write_text("raise SystemExit('never fetched')")
    (path / "pytorch_model.bin").write_bytes(b"\0" * 5000)
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[Files]:
    with serving() as files:
        yield files


@pytest.fixture
def hub(server: Files, model: Path) -> Files:
    """The server with the model, and nothing else that it was told before."""
    for kept in (server.files, server.headers, server.cut, server.status, server.asked):
        kept.clear()
    entries = []
    for file in sorted(model.iterdir()):
        data = file.read_bytes()
        digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        entries.append({"type": "file", "path": file.name, "size": len(data), "oid": digest})
        at = f"/{REPO}/resolve/{COMMIT}/{file.name}"
        server.files[at] = data
        server.headers[at] = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT}
    siblings = [{"rfilename": e["path"], "size": e["size"], "blobId": e["oid"]} for e in entries]
    info = {"id": REPO, "sha": COMMIT, "private": False, "tags": [], "siblings": siblings}
    for path in (f"/api/models/{REPO}", f"/api/models/{REPO}/revision/main"):
        server.json(path, info)
    server.json(f"/api/models/{REPO}/tree/{COMMIT}", entries)
    return server


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("puller")
    return {"HF_HOME": str(base / "hf"), "EXO_HOME": str(base / "home")}


@pytest.fixture(scope="module")
def puller(
    server: Files, folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Puller]:
    errors = tmp_path_factory.mktemp("puller") / "stderr"
    with pytest.MonkeyPatch.context() as patch:
        for name in OUTSIDE:
            patch.delenv(name, raising=False)
        made = Puller(errors, HF_ENDPOINT=server.url, **folders)
    yield made
    made.end()


@pytest.fixture
def act(hub: Files, puller: Puller, folders: dict[str, str]) -> Puller:
    """`puller`, with nothing in its cache."""
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    return puller


@pytest.fixture
def once(hub: Files, folders: dict[str, str], home: Path, tmp_path: Path) -> Callable[..., list[Any]]:
    """The same in a process of its own, with other settings."""

    def run(*actions: str, **env: str) -> list[Any]:
        made = Puller(tmp_path / "stderr", **{"HF_ENDPOINT": hub.url, **folders, **env})
        answers = made(*actions)
        made.end()
        return answers

    return run


def wanted(model: Path) -> set[str]:
    return {p.name for p in model.iterdir()} - {"modeling.py", "pytorch_model.bin"}


def test_pulled_located_listed_and_removed(act: Puller, once: Any, hub: Files, model: Path) -> None:
    bytes_ = sum((model / name).stat().st_size for name in wanted(model))
    before, size, path, seen, found, listed = act("locate", "size", "pull", "seen", "locate", "models")
    assert before == "None" and size == bytes_
    assert {p.name for p in Path(path).iterdir()} == wanted(model), "what mlx-lm reads, and no code"
    assert seen == [[bytes_, bytes_], True]
    assert found == path and listed == [REPO]
    asked = len(hub.asked)
    assert once("locate", "models", "pull", HF_HUB_OFFLINE="1") == [path, [REPO], path]
    assert len(hub.asked) == asked, "what is here is found without network"
    freed, after = act("remove", "locate")
    assert freed >= bytes_ and after == "None"


def test_a_snapshot_with_a_hole_does_not_count(act: Puller, model: Path) -> None:
    (path,) = act("pull")
    weights = Path(path, "model.safetensors")
    weights.resolve().unlink()  # the link in the snapshot now leads nowhere
    assert act("locate", "models") == ["None", []]
    assert act("pull", "locate") == [path, path], "a pull mends it"
    weights.rename(weights.with_name("model-00001-of-00002.safetensors"))
    assert act("locate") == ["None"], "by its name there is another file to come"


def test_a_pull_mends_weights_that_are_cut_off(act: Puller, model: Path) -> None:
    (path,) = act("pull")
    weights, whole = Path(path, "model.safetensors"), (model / "model.safetensors").read_bytes()
    weights.resolve().write_bytes(whole[:-100])
    assert act("pull") == [path] and weights.read_bytes() == whole


def test_a_cancel_ends_it_and_the_next_pull_completes_it(act: Puller, model: Path) -> None:
    (kind, _), found = act("pull", "stop", "locate")
    assert kind == "Cancelled" and found == "None"
    (path,) = act("pull")
    assert {p.name for p in Path(path).iterdir()} == wanted(model)


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (404, "RepoNotFound", "ModelNotFound", "no model org/tiny"),
        (404, "RevisionNotFound", "ModelNotFound", "no revision"),
        (403, "GatedRepo", "Unavailable", "accept its terms"),
        (401, "", "ModelNotFound", "HF_TOKEN"),
        (500, "", "Unavailable", "HTTP 500"),
    ],
)
def test_what_the_hub_refuses(act: Puller, hub: Files, status: int, code: str, kind: str, words: str) -> None:
    for path in list(hub.files):
        hub.status[path] = status
        hub.headers[path] = {"X-Error-Code": code} if code else {}
    (answer, size) = act("pull", "size")
    assert answer[0] == kind and words in answer[1] and "\n" not in answer[1]
    assert size is None


def test_nobody_there(act: Puller, once: Any) -> None:
    (answer,) = once("pull", HF_ENDPOINT="http://127.0.0.1:9")
    assert answer[0] == "Unavailable" and "cannot be reached" in answer[1]


def test_a_cache_that_cannot_be_written(once: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (answer,) = once("pull", HF_HOME=str(tmp_path / "file"))
    assert answer[0] == "Unavailable" and str(tmp_path / "file") in answer[1]


def test_a_repo_without_a_model(act: Puller, once: Any, hub: Files) -> None:
    entry = [{"type": "file", "path": "README.txt", "size": 2, "oid": "b" * 40}]
    hub.json(f"/api/models/{REPO}/tree/{COMMIT}", entry)
    at = f"/{REPO}/resolve/{COMMIT}/README.txt"
    hub.files[at] = b"hi"
    hub.headers[at] = {"ETag": f'"{"b" * 40}"', "X-Repo-Commit": COMMIT}
    (answer,) = once("pull")  # a process remembers what a commit has
    assert answer[0] == "ModelNotFound" and "no model for mlx-lm" in answer[1]
