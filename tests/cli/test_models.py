"""`exo models`, on a backend whose models are files."""

from __future__ import annotations

import json
import subprocess

from exocli.cli.render import size_text


def test_listing_pulling_showing_and_removing(exo, shelf, home):
    home.mkdir()
    (home / "config.toml").write_text('[models.mine]\nmodel = "tiny"\n')
    rows = {row["name"]: row for row in json.loads(exo("models", "list", "--json").out)}
    assert rows["tiny"]["here"] is False and rows["tiny"]["backend"] == "shelf"
    assert rows["mine"]["source"] == "alias of tiny" and rows["mine"]["here"] is False
    assert "not pulled" in exo("models", "list").out

    pulled = json.loads(exo("-q", "models", "pull", "tiny", "--json").out)
    assert pulled["size"] == 1_000_000 and pulled["path"] == str(shelf / "tiny.shelf")
    rows = {row["name"]: row for row in json.loads(exo("models", "list", "--json").out)}
    assert rows["tiny"]["here"] is True and rows["mine"]["path"] == pulled["path"]

    shown = exo("models", "show", "mine")
    assert "size: 1.0 MB" in shown.out and "layers: 3" in shown.out
    assert json.loads(exo("models", "show", "tiny", "--json").out)["details"] == {"layers": 3}

    removed = exo("models", "rm", "tiny", "--json")
    assert json.loads(removed.out) == [{"name": "tiny", "freed": 1_000_000}]
    assert exo("models", "show", "tiny").code == 3


def test_a_model_of_several_backends_is_one_line(exo):
    rows = [row for row in json.loads(exo("models", "list", "--json").out) if row["name"] == "smollm2"]
    assert [row["backend"] for row in rows] == ["mlx", "ring"]
    (line,) = [line for line in exo("models", "list").out.splitlines() if line.startswith("smollm2")]
    assert " mlx, ring " in line


def test_progress_is_plain_lines_without_a_terminal(exo, shelf):
    result = exo("models", "pull", "tiny")
    assert result.code == 0 and result.out == ""
    first, *_, last, ready = result.err.splitlines()
    assert first == "Pulling tiny: 100 kB of 1.0 MB (10 %)"
    assert last == "Pulling tiny: 1.0 MB of 1.0 MB (100 %)"
    assert ready.startswith("tiny is ready: 1.0 MB in ") and "\x1b" not in result.err


def test_importing_a_file(exo, shelf, tmp_path):
    good, bad = tmp_path / "a.gguf", tmp_path / "b.gguf"
    good.write_bytes(b"GGUF....")
    bad.write_bytes(b"nothing")
    assert json.loads(exo("models", "import", str(good), "-b", "shelf", "--json").out)["name"] == "a"
    assert exo("models", "import", str(good), "-b", "shelf", "--name", "other").code == 0
    assert sorted(path.name for path in shelf.iterdir()) == ["a.shelf", "other.shelf"]
    result = exo("models", "import", str(bad), "-b", "shelf")
    assert (result.code, result.out) == (3, "") and "is not a GGUF file" in result.err
    assert exo("models", "import", str(tmp_path / "gone.gguf")).code == 3


def test_what_cannot_be_done_is_one_sentence(exo, shelf, tmp_path, monkeypatch):
    path = tmp_path / "mine.shelf"
    path.write_text("x")
    for args, code, word in (
        (("pull", "nobody"), 3, "nobody"),
        (("pull", str(path)), 2, "is a path"),
        (("rm", str(path), "-y"), 2, "is a path"),
        (("show", "tiny"), 3, "not on the shelf"),
        (("pull", "tiny", "-b", "sample"), 2, "keeps no models"),
        (("pull", "tiny", "-b", "nobody"), 3, "nobody"),
    ):
        result = exo("models", *args)
        assert (result.code, result.out) == (code, ""), args
        assert word in result.err and result.err.count("\n") == 1
    assert path.exists()
    monkeypatch.setenv("EXO_OFFLINE", "1")
    result = exo("models", "pull", "tiny")
    assert result.code == 3 and "EXO_OFFLINE" in result.err


def test_a_home_that_cannot_be_written(exo, shelf, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXO_HOME", str(tmp_path / "file"))
    result = exo("models", "pull", "tiny")
    assert result.code == 1 and "Not a directory" in result.err and result.err.count("\n") == 1


def test_remove_asks_on_a_terminal(spawn, shelf):
    import os
    import pty

    shelf.mkdir(parents=True)
    (shelf / "tiny.shelf").write_text("x")
    for answer, left in ((b"n\n", True), (b"\x04", True), (b"\n", True), (b"y\n", False)):
        leader, follower = pty.openpty()
        process = spawn("models", "rm", "tiny", stdin=follower, stderr=follower, stdout=subprocess.DEVNULL)
        os.close(follower)
        seen = b""
        while b"[y/N]" not in seen:
            seen += os.read(leader, 1024)
        os.write(leader, answer)
        assert process.wait(20) == 0
        os.close(leader)
        assert (shelf / "tiny.shelf").exists() is left


def test_sizes_for_a_person():
    assert [size_text(n) for n in (0, 999, 1000, 9_949, 105_000_000, 999_900_000, 2 * 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "9.9 kB",
        "105 MB",
        "1.0 GB",
        "2.0 TB",
    ]
