"""Options → how each rank is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exocli import ModelRef, OutOfMemory, UsageError

from exo_ring.launcher import launch, prefix
from exo_ring.options import Options

NOWHERE = ModelRef(kind="path", name="/no/such/model")


def write(path: Path, *names: str) -> str:
    file = path / "hosts.json"
    file.write_text(json.dumps([{"ssh": n, "ips": [f"10.0.0.{i}"]} for i, n in enumerate(names, 1)]))
    return str(file)


def test_local_ranks() -> None:
    specs = launch(NOWHERE, Options(ranks=3))
    assert [spec.rank for spec in specs] == [0, 1, 2]
    assert {spec.prefix for spec in specs} == {()}
    seats = specs[0].data["seats"]
    assert len({port for seat in seats for _, port in seat["addresses"]}) == 3
    assert all(spec.data["seats"] == seats and spec.data["local_ranks"] == 3 for spec in specs)
    assert len({(spec.data["nonce"], spec.data["view"]) for spec in specs}) == 1
    assert len(launch(NOWHERE, Options())) == 2


def test_more_ranks_than_the_machine_has_memory_for() -> None:
    with pytest.raises(OutOfMemory, match="999999 ranks on this machine need"):
        launch(NOWHERE, Options(ranks=999_999))


def test_two_rings_are_told_apart() -> None:
    one, other = launch(NOWHERE, Options(ranks=2))[0], launch(NOWHERE, Options(ranks=2))[0]
    assert one.data["nonce"] != other.data["nonce"] and one.data["view"] != other.data["view"]


def test_hosts(tmp_path: Path) -> None:
    path = write(tmp_path, "mac1", "localhost", "mac3")
    options = Options(hostfile=path, remote_python="/opt/py", port=40000)
    first = launch(NOWHERE, options)
    assert [spec.prefix for spec in first] == [("ssh", "mac1"), (), ("ssh", "mac3")]
    assert [spec.python for spec in first] == ["/opt/py", None, "/opt/py"]
    assert [spec.host for spec in first] == ["mac1", "localhost", "mac3"]
    ports = [seat["addresses"][0][1] for seat in first[0].data["seats"]]
    assert ports == list(range(ports[0], ports[0] + 3)) and (ports[0] - 40000) % 3 == 0
    again = [seat["addresses"][0][1] for seat in launch(NOWHERE, options)[0].data["seats"]]
    assert not {*again} & {*ports}, "a stopped rank may still hold the ports of the last ring"


def test_a_launcher_of_ones_own_is_used_for_every_host(tmp_path: Path) -> None:
    path = write(tmp_path, "localhost", "b")
    specs = launch(NOWHERE, Options(hostfile=path, launcher="ip netns exec {host} nice -n 5"))
    assert specs[0].prefix == ("ip", "netns", "exec", "localhost", "nice", "-n", "5")
    assert prefix("kubectl exec -i 'my {host}' --", "pod") == ("kubectl", "exec", "-i", "my pod", "--")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ranks": 1}, "at least 2; one rank is the backend mlx"),
        ({"ranks": 2, "hostfile": "x"}, "either ranks or hostfile"),
        ({"launcher": "ssh"}, "must name {host}"),
        ({"port": 80}, "from 1024 to 65000"),
        ({"connect_timeout": 0}, "more than 0 seconds"),
        ({"stall_timeout": -1}, "must not be negative"),
        ({"split": (3, 0)}, "at least one layer"),
        ({"split": (3, 3), "strategy": "tensor"}, "strategy=tensor divides each"),
    ],
)
def test_options_that_cannot_be(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Options(**fields)  # type: ignore[arg-type]


def test_a_hostfile_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"hosts\.json cannot be read"):
        launch(NOWHERE, Options(hostfile="hosts.json"))
