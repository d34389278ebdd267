"""`exo ring check` and `exo ring plan`, and launches that cannot work, as a user meets them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from exocli import Unavailable, UsageError, choose

from exo_ring.launcher import launch
from exo_ring.options import Options
from tests.exo_ring import tiny
from tests.exo_ring.ranks import free_ports


def exo(*arguments: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exocli", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def hostfile(folder: Path, *hosts: tuple[str, str]) -> str:
    path = folder / "hosts.json"
    path.write_text(json.dumps([{"ssh": name, "ips": [ip]} for name, ip in hosts]))
    return str(path)


@pytest.fixture
def launcher(tmp_path: Path) -> str:
    """A launcher that, like ssh, starts the command for a host; it runs it here."""
    path = tmp_path / "start"
    path.write_text(
        '#!/bin/sh\nhost=$1; shift\ncase $host in bad*) echo "no route to $host" >&2; exit 255;; esac\n'
    )
    path.write_text(path.read_text() + 'exec "$@"\n')
    path.chmod(0o755)
    return f"{path} {{host}}"


def test_plan(folder: Path) -> None:
    done = exo("ring", "plan", "-m", str(folder), "-o", "ranks=2", "-o", "split=3,1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split("  ")[0] == "RANK" and "0-2" in lines[1] and "3-3" in lines[2]
    assert lines[-1] == "Pipeline, since a split was given."


def test_check(folder: Path) -> None:
    done = exo("ring", "check", "-m", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["errors"] == [] and len(found["ranks"]) == 2
    assert all(0 < r["latency_s"] < 1 and r["bytes_per_s"] > 1e6 for r in found["ranks"])
    assert {r["model"] for r in found["ranks"]} == {found["ranks"][0]["model"]}
    assert found["plan"]["shares"][1]["stop"] == tiny.LAYERS


def test_a_host_that_cannot_be_reached(folder: Path, tmp_path: Path, launcher: str) -> None:
    hosts = hostfile(tmp_path, ("good", "127.0.0.1"), ("bad1", "127.0.0.2"))
    start = time.monotonic()
    done = exo("ring", "check", "-m", str(folder), "-o", f"hostfile={hosts}", "-o", f"launcher={launcher}")
    assert done.returncode == 3 and time.monotonic() - start < 30
    assert done.stderr == "exo: Rank 1 on bad1: its command ended with status 255: no route to bad1.\n"


def test_an_address_where_nobody_listens(folder: Path, tmp_path: Path, launcher: str) -> None:
    """The second host's address is not the second host's."""
    hosts = hostfile(tmp_path, ("a", "127.0.0.1"), ("b", "192.0.2.7"))
    options = ("-o", f"hostfile={hosts}", "-o", f"launcher={launcher}", "-o", "connect_timeout=1")
    done = exo("ring", "check", "-m", str(folder), *options)
    assert done.returncode == 3
    assert "Rank 1 on b cannot listen on 192.0.2.7:" in done.stderr
    assert "the machine has no such address: correct the hostfile" in done.stderr


def test_a_busy_port(folder: Path, tmp_path: Path, launcher: str) -> None:
    (port,) = free_ports(1)
    hosts = hostfile(tmp_path, ("a", "127.0.0.1"), ("b", "127.0.0.2"))
    options = ("-o", f"hostfile={hosts}", "-o", f"launcher={launcher}", "-o", f"port={port}")
    with socket.create_server(("127.0.0.1", port)):
        done = exo("run", "-b", "ring", "-m", str(folder), *options, "-o", "connect_timeout=2", "hello")
    assert done.returncode == 3
    assert f"Rank 0 on a cannot listen on 127.0.0.1:{port}: another program has the port" in done.stderr


def test_another_model_and_another_version(folder: Path, tmp_path: Path) -> None:
    """Host b sees another folder under the model's path, and another exocli."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "generation_config.json").write_text('{"temperature": 1}')
    fake = tmp_path / "fake" / "exocli-9.9.9.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: exocli\nVersion: 9.9.9\n")
    path = tmp_path / "start"
    path.write_text(
        "#!/bin/sh\nhost=$1; shift\n"
        f'if [ $host = b ]; then export PYTHONPATH={fake.parent}; set -- unshare -m sh -c "mount --bind '
        f'{other} {folder} && exec \\$0 \\$@" "$@"; fi\n'
        'exec "$@"\n'
    )
    path.chmod(0o755)
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let a test have a file system of its own (unshare -m)")
    hosts = hostfile(tmp_path, ("a", "127.0.0.1"), ("b", "127.0.0.2"))
    options = ("-o", f"hostfile={hosts}", "-o", f"launcher={path} {{host}}")
    done = exo("ring", "check", "-m", str(folder), *options)
    assert done.returncode == 3, done.stdout
    assert "Rank 1 on b has exocli 9.9.9, rank 0 on a has " in done.stderr
    assert f"Rank 1 on b has another {folder} than rank 0 on a: fetch it anew there." in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["hostfile=/no/hosts.json"], "The hostfile /no/hosts.json cannot be read: No such file"),
        (["strategy=tensor", "ranks=3"], "cannot run tensor parallel on 3 ranks: 4 attention"),
        (["split=3,2"], "split=3,2 adds up to 5 layers; "),
        (["ranks=7"], "tiny has 4 layers, which 7 ranks cannot share: use fewer ranks."),
        (["ranks=1"], "one rank is the backend mlx"),
        # What only one rank can do is refused by name.
        (["adapter=/some/folder"], 'The backend ring has no option "adapter"'),
        (["draft=smollm2"], 'The backend ring has no option "draft"'),
        (["speculate=lookup"], 'The backend ring has no option "speculate"'),
    ],
)
def test_what_is_refused_before_anything_starts(folder: Path, options: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        chosen = choose(str(folder), "ring", options)
        launch(chosen.ref, Options(**chosen.options))
    assert said in caught.value.message and "\n" not in caught.value.message


def test_a_model_that_makes_embeddings_is_refused() -> None:
    with pytest.raises(Unavailable, match="The backend ring does not open minilm"):
        choose("minilm", "ring", ())
