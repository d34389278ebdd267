"""`exo plugins` and `exo backends`: what is listed, what `check` finds, and a new plugin that works."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from exocli.cli import scaffold
from exocli.errors import UsageError

from tests.support.distribution import write_distribution


def test_backends(exo, shelf, monkeypatch):
    rows = {row["name"]: row for row in json.loads(exo("backends", "--json").out)}
    assert {"mlx", "sample", "shelf"} <= set(rows)
    assert rows["shelf"]["distribution"] == "shelf-plugin" and rows["shelf"]["version"] == "1.0"
    assert rows["shelf"]["state"] == "available" and rows["shelf"]["capabilities"]["max_concurrency"] == 1
    assert rows["shelf"]["options"]["depth"] == {"takes": "a whole number", "default": 3}
    shown = exo("backends", "-v").out
    assert "Repeats what it is told" in shown and "-o shout=true or false" in shown
    monkeypatch.setenv("SHELF_MISSING", "there is no wall")
    assert "shelf is not available: there is no wall. build a shelf" in exo("backends").out


def test_list(exo):
    rows = {row["plugin"]: row for row in json.loads(exo("plugins", "list", "--json").out)}
    assert rows["sample"]["offers"] == ["backend sample", "command sample-hello"]
    assert rows["sample"]["distribution"] == "exo-sample" and rows["mlx"]["distribution"] == "exocli"
    assert "command sample-hello" in exo("plugins", "list").out


def test_list_shows_what_did_not_load(exo, site):
    write_distribution(site, "broken", "import a_module_that_is_not_there")
    result = exo("plugins", "list")
    assert result.code == 0 and "a_module_that_is_not_there" in result.out
    (row,) = [r for r in json.loads(exo("plugins", "list", "--json").out) if r["plugin"] == "broken"]
    assert row["offers"] == [] and len(row["problems"]) == 1


def test_check(exo, shelf):
    assert exo("plugins", "check", "sample").out == "sample (exo-sample 0.1.0): good\n"
    assert exo("plugins", "check", "exo-sample").code == 0
    assert exo("plugins", "check", "shelf-plugin").code == 0
    result = exo("plugins", "check", "nobody")
    assert result.code == 2 and "sample" in result.err


def test_check_finds_what_loading_cannot_see(exo, site):
    write_distribution(
        site,
        "sloppy",
        """
        from dataclasses import dataclass
        from exocli import BackendSpec, CommandSpec, RouteSpec, hookimpl

        @dataclass
        class Thawed:
            a: int = 0

        @dataclass(frozen=True)
        class Odd:
            a: "NoSuchType" = 0

        def no_arguments():
            return "yes"

        def fails():
            raise SystemExit(3)

        text = "not a function"

        @hookimpl
        def exo_backends():
            yield BackendSpec(
                name="sloppy", summary="", api=1, protocol="stepp", place="inline", capabilities=None,
                open="sloppy:no_arguments", open_options="sloppy:Thawed", request_options="sloppy:Odd",
                probe="sloppy:no_arguments", models="sloppy:no_arguments", launch="sloppy:text",
                doctor="sloppy.missing:doctor",
            )
            yield BackendSpec(
                name="sloppy2", summary="", api=1, protocol="step", place="inline",
                open="sloppy:gone", open_options="sloppy:text", probe="sloppy:fails",
            )

        @hookimpl
        def exo_commands():
            yield CommandSpec(name="sloppy", help="", command="sloppy:fails")
            yield CommandSpec(name="sloppier", help="", command="sloppy:gone")

        @hookimpl
        def exo_server_routes():
            yield RouteSpec(name="sloppy", routes="sloppy:gone")
        """,
    )
    result = exo("plugins", "check", "sloppy", "--json")
    assert result.code == 1
    (row,) = json.loads(result.out)
    text = "\n".join(row["problems"])
    for words in (
        'protocol is "stepp"',
        "capabilities is not a Capabilities",
        "sloppy:no_arguments must take 1 argument",
        "sloppy:Thawed is not a frozen dataclass",
        "annotations of sloppy:Odd",
        "answers a str, not an Availability",
        "lacks models, aliases",
        "sloppy:text is not a function",
        "sloppy.missing:doctor cannot be imported",
        "a step engine runs in a worker",
        "sloppy:gone cannot be imported",
        "sloppy:text is not a dataclass",
        "sloppy:fails fails (SystemExit: 3)",
        'command "sloppy": sloppy:fails is not a click command',
        'command "sloppier": sloppy:gone',
        'routes "sloppy": sloppy:gone',
    ):
        assert words in text
    assert exo("plugins", "check", "sample").code == 0


def test_new_is_a_plugin_whose_own_tests_pass(exo, tmp_path, monkeypatch):
    result = exo("plugins", "new", "exo-my-engine", "--dir", str(tmp_path))
    folder = tmp_path / "exo-my-engine"
    assert result.code == 0 and f"{sys.executable} -m pip install -e" in result.err
    assert "pytest\n" in result.err, "its test, the last step, needs it"
    monkeypatch.syspath_prepend(str(folder))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests")],
        env={"PYTHONPATH": str(folder), "PATH": ""},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    project = (folder / "pyproject.toml").read_text()
    assert 'name = "exo-my-engine"' in project and 'my-engine = "exo_my_engine.plugin"' in project
    assert "@" not in project


@pytest.mark.parametrize("name", ["My Engine", "../x", "", "1st", "a--b", "exo-", "mlx", "sample"])
def test_new_refuses_other_names(tmp_path, name):
    with pytest.raises(UsageError):
        scaffold.write(name, tmp_path)
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "home"])


def test_new_never_overwrites(exo, tmp_path):
    (tmp_path / "exo-fresh").mkdir()
    result = exo("plugins", "new", "fresh", "--dir", str(tmp_path))
    assert result.code == 2 and "is there already" in result.err


def test_test_of_an_unknown_backend(exo):
    result = exo("plugins", "test", "nobody")
    assert result.code == 3 and "sample" in result.err
