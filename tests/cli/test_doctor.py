"""`exo doctor`: this machine, the folders, and what backends say of themselves."""

from __future__ import annotations

import json

from exocli.cli import doctor

from tests.support.distribution import write_distribution


def rows_of(result):
    return {(row["area"], row["name"]): row for row in json.loads(result.out)}


def test_a_good_machine(exo, shelf, home):
    result = exo("doctor", "--json")
    rows = rows_of(result)
    assert result.code == 0
    for key in (
        ("exo", "python"),
        ("this machine", "cores"),
        ("this machine", "memory"),
        ("folders", "config"),
    ):
        assert rows[key]["state"] in ("ok", "warning")
    assert str(home) in rows["folders", "models"]["text"]
    assert rows["backend shelf", "screws"] == {
        "area": "backend shelf",
        "name": "screws",
        "state": "warning",
        "text": "loose",
        "hint": "tighten them",
    }
    text = exo("doctor").out
    assert "warning  screws" in text and "→ tighten them" in text


def test_a_config_that_cannot_work_is_found(exo, shelf, home):
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('modell = "x"\n[backends.shelff]\n')
    result = exo("doctor", "--json")
    found = {(row["area"], row["state"]): row["text"] for row in json.loads(result.out)}
    assert result.code == 1
    assert '"modell"' in found["exo chat", "problem"] and '"modell"' in found["folders", "problem"]
    assert "shelff" in found["folders", "warning"]
    assert exo("config", "unset", "modell").code == 0
    (home / "config.toml").write_text('backend = "nosuch"\n')
    assert "nosuch" in exo("doctor", "--json").out


def test_what_is_broken_is_said_and_is_exit_1(exo, site, tmp_path, monkeypatch):
    write_distribution(site, "broken", "raise SystemExit(1)")
    write_distribution(
        site,
        "faint",
        """
        from exocli import BackendSpec, hookimpl

        def doctor():
            raise RuntimeError("oh")

        @hookimpl
        def exo_backends():
            yield BackendSpec(name="faint", summary="", api=1, protocol="stream", place="inline",
                              open="faint:doctor", doctor="faint:doctor")
        """,
    )
    result = exo("doctor", "--json")
    rows = rows_of(result)
    assert result.code == 1
    assert "RuntimeError: oh" in rows["backend faint", "backend faint"]["text"]
    assert rows["plugins", "broken"]["state"] == "warning"
    (tmp_path / "file").write_text("")
    for nowhere in (tmp_path / "file", "/proc/nope"):
        monkeypatch.setenv("EXO_HOME", str(nowhere))
        rows = rows_of(exo("doctor", "--json"))
        assert rows["folders", "models"]["state"] == "problem"


def test_a_broken_config_is_a_problem_not_a_crash(exo, home):
    home.mkdir()
    (home / "config.toml").write_text("x = \n")
    result = exo("doctor", "--json")
    assert result.code == 1 and result.err == ""
    assert "config.toml" in rows_of(result)["folders", "config"]["text"]


def test_memory_and_cores_are_this_machines():
    total, available = doctor.memory()
    assert total > 10**8 and (available is None or 0 < available <= total)
    assert doctor.usable_cores() >= 1
