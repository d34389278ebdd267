"""Third-party plugins of every broken kind: each is named with its reason, and everything else works.

Real distributions (folders with .dist-info) on the path of a real process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from exocli import BackendSpec, plugins
from exocli.errors import BackendNotFound

from tests.support.distribution import write_distribution

GOOD = """
from exocli import BackendSpec, CommandSpec, RouteSpec, hookimpl
def backend(name, **more):
    fields = {"summary": "", "api": 1, "protocol": "step", "place": "worker", "open": "m:f", **more}
    return BackendSpec(name=name, **fields)
"""

LIST = """
import json
from exocli import plugins
found = plugins.manager()
print(json.dumps({
    "backends": {n: [r.spec.name, r.distribution, r.version] for n, r in found.backends.items()},
    "commands": {n: [r.spec.name, r.distribution] for n, r in found.commands.items()},
    "routes": {n: r.distribution for n, r in found.routes.items()},
    "problems": [[p.plugin, p.distribution, p.version, p.reason] for p in found.problems],
    "loaded": [distribution for _, distribution, _ in found.loaded],
}))
"""

BROKEN = {
    "importing": ("import nothing_of_that_name", "cannot be imported (ModuleNotFoundError: No module named"),
    "odd-syntax": ("def (:", "cannot be imported (SyntaxError: "),
    "exiting": ("raise SystemExit(3)", "cannot be imported (SystemExit: 3)"),
    "interrupting": ("raise KeyboardInterrupt", "cannot be imported (KeyboardInterrupt)"),
    "asserting": ("assert False", "cannot be imported (AssertionError)"),
    "printing-and-failing": (
        "print('noise'); 1 / 0",
        "cannot be imported (ZeroDivisionError: division by zero)",
    ),
    "wrong-signature": (
        f"{GOOD}\n@hookimpl\ndef exo_commands(surprise): return []",
        "wrong hook signature (Argument(s) {'surprise'} are declared",
    ),
    "half-wrong": (
        f"{GOOD}\n@hookimpl\ndef exo_backends(): return [backend('half')]\n"
        "@hookimpl\ndef exo_commands(surprise): return []",
        "wrong hook signature",
    ),
    "unknown-hook": (
        f"{GOOD}\n@hookimpl\ndef exo_kitchen(): return []",
        'implements "exo_kitchen", which is not a hook of this version',
    ),
    "no-hook": ("x = 1", "implements no hook of exo"),
    "unmarked": ("def exo_backends(): return []", "implements no hook of exo"),
    "next-api": (
        f"{GOOD}\n@hookimpl\ndef exo_backends(): return [backend('future', api=2)]",
        'backend "future" is written for plugin API 2, this is 1',
    ),
    "raising-hook": (
        f"{GOOD}\n@hookimpl\ndef exo_backends(): raise ValueError('no  good\\nreason')",
        "exo_backends failed (ValueError: no good reason)",
    ),
    "exiting-hook": (f"{GOOD}\n@hookimpl\ndef exo_backends(): raise SystemExit", "failed (SystemExit)"),
    "raising-generator": (
        f"{GOOD}\n@hookimpl\ndef exo_backends():\n    yield backend('one')\n    1 / 0",
        "exo_backends failed (ZeroDivisionError: division by zero)",
    ),
    "no-spec": (
        f"{GOOD}\n@hookimpl\ndef exo_backends(): return [{{'name': 'dict'}}]",
        "exo_backends answered a dict, not a BackendSpec",
    ),
    "no-list": (f"{GOOD}\n@hookimpl\ndef exo_backends(): return 7", "exo_backends failed (TypeError: "),
    "lone-spec": (
        f"{GOOD}\n@hookimpl\ndef exo_backends(): return backend('lone')",
        "exo_backends failed (TypeError: ",
    ),
    "other-field": (
        f"{GOOD}\n@hookimpl\ndef exo_backends(): return [backend('x', of_the_future=1)]",
        "exo_backends failed (TypeError: ",
    ),
    "odd-name": (
        f"{GOOD}\n@hookimpl\ndef exo_backends(): return [backend(['list']), backend('a:b'), backend('')]",
        "the name ['list'] of a backend must be of letters",
    ),
    "twice": (
        f"{GOOD}\n@hookimpl\ndef exo_backends(): return [backend('two'), backend('two'), backend('two')]",
        'the backend "two" belongs to twice already; this one is "twice:two"',
    ),
}


def run(site: Path, *args: str, code: str = LIST, **env: str) -> subprocess.CompletedProcess[str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith("EXO_")}
    base |= {"PYTHONPATH": str(site), "EXO_HOME": str(site / "home"), **env}
    command = [sys.executable, *(args or ("-c", code))]
    return subprocess.run(command, env=base, capture_output=True, text=True, timeout=60)


def listed(site: Path, **env: str) -> dict[str, Any]:
    done = run(site, **env)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def good(tmp_path: Path) -> Path:
    code = f"""{GOOD}
@hookimpl
def exo_backends(): return [backend("fine")]
@hookimpl
def exo_commands(): yield CommandSpec(name="fine-cmd", help="h", command="m:c")
@hookimpl
def exo_server_routes(): return (RouteSpec(name="fine-r", routes="m:r"),)
"""
    write_distribution(tmp_path, "zz-good", code)
    return tmp_path


@pytest.fixture(scope="module")
def all_broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process says of all broken plugins together, with a good one among them."""
    site = tmp_path_factory.mktemp("site")
    for name, (code, _) in BROKEN.items():
        write_distribution(site, name, code, version="1.2")
    write_distribution(site, "zz-good", f"{GOOD}\n@hookimpl\ndef exo_backends(): return [backend('fine')]")
    write_distribution(
        site, "a-thief", f"{GOOD}\n@hookimpl\ndef exo_backends(): return [backend('mlx'), backend('own')]"
    )
    return listed(site)


@pytest.mark.parametrize("name", BROKEN)
def test_each_is_named_with_its_distribution_version_and_reason(
    all_broken: dict[str, Any], name: str
) -> None:
    reasons = [p for p in all_broken["problems"] if p[1] == name]
    assert reasons and reasons[0][:3] == [name, name, "1.2"]
    assert BROKEN[name][1] in reasons[0][3] and "\n" not in reasons[0][3]
    assert name not in all_broken["loaded"]


def test_everything_else_works(all_broken: dict[str, Any]) -> None:
    assert all_broken["backends"]["fine"] == ["fine", "zz-good", "1.0"]
    assert all_broken["backends"]["mlx"][1] == "exocli"
    assert "zz-good" in all_broken["loaded"] and "exocli" in all_broken["loaded"]
    blamed = {distribution for _, distribution, _, _ in all_broken["problems"]}
    assert blamed == {*BROKEN, "a-thief"}
    assert set(all_broken["backends"]) & {"half", "future", "lone", "x", "one"} == set()


def test_a_taken_name_displaces_nobody_and_stays_reachable(all_broken: dict[str, Any]) -> None:
    assert all_broken["backends"]["mlx"][1] == "exocli"
    assert all_broken["backends"]["a-thief:mlx"] == ["mlx", "a-thief", "1.0"]
    assert all_broken["backends"]["own"][1] == "a-thief"
    (problem,) = [p for p in all_broken["problems"] if p[1] == "a-thief"]
    assert problem[3] == 'the backend "mlx" belongs to exocli already; this one is "a-thief:mlx"'


def test_a_good_plugin_offers_all_three_kinds(good: Path) -> None:
    found = listed(good)
    assert found["backends"]["fine"] == ["fine", "zz-good", "1.0"]
    assert found["commands"]["fine-cmd"] == ["fine-cmd", "zz-good"]
    assert found["routes"]["fine-r"] == "zz-good" and found["problems"] == []


def test_an_implementation_by_another_function_name_counts(tmp_path: Path) -> None:
    code = f"{GOOD}\n@hookimpl(specname='exo_backends')\ndef mine(): return [backend('renamed')]"
    write_distribution(tmp_path, "renamed", code)
    found = listed(tmp_path)
    assert found["backends"]["renamed"][1] == "renamed" and found["problems"] == []


def test_broken_metadata_does_not_stop_the_others(good: Path) -> None:
    nameless = good / "nameless-1.dist-info"
    nameless.mkdir()
    (nameless / "METADATA").write_text("Metadata-Version: 2.1\n")
    (nameless / "entry_points.txt").write_text("[exo]\nnameless = nowhere\nodd value = no module!\n")
    found = listed(good)
    assert found["backends"]["fine"] and found["backends"]["mlx"]
    assert {p[0] for p in found["problems"]} >= {"nameless"}


# ------------------------------------------------------------------------------------------ switches


@pytest.mark.parametrize(
    ("env", "there"),
    [
        ({}, True),
        ({"EXO_PLUGINS": "other, zz-good"}, True),
        ({"EXO_PLUGINS": "ZZ_Good"}, True),
        ({"EXO_PLUGINS": "other"}, False),
        ({"EXO_PLUGINS": ""}, False),
        ({"EXO_NO_PLUGINS": "1"}, False),
        ({"EXO_NO_PLUGINS": "0"}, True),
    ],
)
def test_the_environment_chooses_third_parties_and_never_the_built_ins(
    good: Path, env: dict[str, str], there: bool
) -> None:
    found = listed(good, **env)
    assert ("fine" in found["backends"]) is there
    assert "mlx" in found["backends"] and found["problems"] == []


@pytest.mark.parametrize("value", ['["zz-good"]', '"zz_good"', '["mlx", "exocli", "zz-good"]'])
def test_the_config_disables_third_parties_and_never_the_built_ins(good: Path, value: str) -> None:
    (good / "home").mkdir()
    (good / "home" / "config.toml").write_text(f"[plugins]\ndisabled = {value}\n")
    found = listed(good)
    assert "fine" not in found["backends"] and "mlx" in found["backends"]


def test_strict_makes_a_problem_fatal(tmp_path: Path) -> None:
    write_distribution(tmp_path, "broken", "1 / 0")
    done = run(tmp_path, "-m", "exocli", "backends", EXO_STRICT_PLUGINS="1")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert 'Plugin "broken" of broken 1.0: cannot be imported (ZeroDivisionError' in done.stderr


# ----------------------------------------------------------------------------------------- the program


def test_the_program_warns_once_on_stderr_and_goes_on(good: Path) -> None:
    write_distribution(good, "broken", "print('noise'); raise SystemExit('bye')")
    done = run(good, "-m", "exocli", "backends", "--json")
    assert done.returncode == 0
    names = {entry["name"] for entry in json.loads(done.stdout)}
    assert {"mlx", "fine"} <= names
    assert done.stderr.count('Plugin "broken" of broken 1.0') == 1 and "Traceback" not in done.stderr


def test_no_plugins_leaves_third_parties_out(good: Path) -> None:
    write_distribution(good, "broken", "raise KeyboardInterrupt")
    done = run(good, "-m", "exocli", "--no-plugins", "backends", "--json")
    assert done.returncode == 0 and done.stderr == ""
    names = {entry["name"] for entry in json.loads(done.stdout)}
    assert "mlx" in names and "fine" not in names


def test_an_unknown_backend_lists_those_there_are() -> None:
    with pytest.raises(BackendNotFound, match=r'There is no backend "nothing"; installed are: .*mlx'):
        plugins.backend("nothing")
    assert isinstance(plugins.backend("mlx"), BackendSpec)
