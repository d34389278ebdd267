"""MLX's hostfile: what its own tools write is read, and everything that is wrong in one is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exocli import UsageError
from hypothesis import given
from hypothesis import strategies as st

from exo_ring import hostfile


def hosts(*pairs: tuple[str, list[str]]) -> str:
    return json.dumps([{"ssh": name, "ips": ips} for name, ips in pairs])


TWO = (("mac1", ["10.0.0.1"]), ("mac2", ["10.0.0.2"]))


def test_a_list_as_mlx_launch_takes_it() -> None:
    found = hostfile.parse(hosts(*TWO), "hosts.json")
    assert [(h.name, h.ips) for h in found.hosts] == [("mac1", ("10.0.0.1",)), ("mac2", ("10.0.0.2",))]


def test_an_object_as_distributed_config_writes_it() -> None:
    entries = [{"ssh": name, "ips": ips, "rdma": [None, "rdma_en2"]} for name, ips in TWO]
    found = hostfile.parse(json.dumps({"backend": "ring", "envs": ["A=b=c"], "hosts": entries}), "x")
    assert len(found.hosts) == 2 and found.env == {"A": "b=c"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{", "is not JSON (line 1, column 3"),
        ("{}", 'it must be a list of {"ssh": …, "ips": […]}'),
        ("[]", "a ring needs at least two hosts, it names none"),
        (hosts(TWO[0]), "a ring needs at least two hosts, it names 1"),
        (hosts(*TWO, ("mac1", ["10.0.0.3"])), "entries 0 and 2 are both mac1"),
        (hosts(*TWO, ("mac3", ["10.0.0.1"])), "the address 10.0.0.1 is mac1 and mac3"),
        (hosts(TWO[0], ("mac2", [])), 'entry 1 (mac2) has no addresses under "ips"'),
        (hosts(TWO[0], ("mac2", ["fe80::1"])), '"fe80::1" of mac2 is not an IPv4 address'),
        (hosts(TWO[0], ("mac2", ["10.0.0.2", "10.0.1.2"])), "must have as many addresses as the others"),
        (hosts(TWO[0], ("", ["10.0.0.2"])), 'entry 1 has no host name under "ssh"'),
        (hosts(TWO[0], ("-oProxyCommand=x", ["10.0.0.2"])), 'entry 1 has no host name under "ssh"'),
        (
            '[{"ssh": "a", "ips": ["10.0.0.1"], "x": 1}, 3]',
            'entry 0 has the unknown key "x"; entry 1 is not',
        ),
        ('{"hosts": [], "backend": "jaccl"}', 'the backend "jaccl" is not "ring"'),
        ('{"hosts": [], "host": 1}', 'unknown key "host"'),
        ('{"hosts": [], "envs": {"A": 1}}', '"envs" must be a list of "NAME=VALUE"'),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        hostfile.parse(text, "my hosts.json")
    assert said in caught.value.message and "my hosts.json" in caught.value.message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        hostfile.read(tmp_path / "none.json")
    (tmp_path / "latin").write_bytes(b"\xff\xfe[]")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        hostfile.read(tmp_path / "latin")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ssh", "ips", "hosts", "envs", "backend", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_read_or_refused_in_words(value: Any) -> None:
    try:
        assert len(hostfile.parse(json.dumps(value), "x").hosts) >= 2
    except UsageError as error:
        assert error.message.endswith(".")
