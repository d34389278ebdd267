"""Three hosts that are network namespaces with addresses of their own, joined by a bridge in a fourth.

Needs the right to make namespaces (root); where that is not given the tests say so and are left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from exocli import Event, Text
from exocli.runtime.session import Session

from tests.exo_ring.conftest import open_session
from tests.support.runtime import end, reply, text, wait_gone

HOSTS = 3
LAUNCHER = "ip netns exec {host}"


def ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


def may_make_namespaces() -> str | None:
    """None, or why not."""
    name = f"exo{os.getpid()}probe"
    try:
        done = ip("netns", "add", name, check=False)
    except FileNotFoundError:
        return "there is no ip command"
    ip("netns", "del", name, check=False)
    return done.stderr.strip() or None


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A hostfile of three namespaces. Removes them all, whatever happens."""
    reason = may_make_namespaces()
    if reason is not None:
        message = f"NOT TESTED: a ring over network namespaces, since they cannot be made here ({reason})."
        print(f"\n{message}", flush=True)
        pytest.skip(message)
    mark = f"exo{os.getpid()}"
    switch = f"{mark}s"
    names = [f"{mark}h{number}" for number in range(HOSTS)]
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip(
                "-n",
                name,
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                "name",
                f"p{number}",
                "netns",
                switch,
            )
            ip("-n", switch, "link", "set", f"p{number}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        path = tmp_path_factory.mktemp("hosts") / "hosts.json"
        path.write_text(
            json.dumps([{"ssh": name, "ips": [f"10.77.0.{n + 1}"]} for n, name in enumerate(names)])
        )
        yield path
    finally:
        for name in (*names, switch):
            ip("netns", "del", name, check=False)


@pytest.fixture
async def ring(hosts: Path, folder: Path) -> AsyncIterator[Session]:
    session = open_session(folder, hostfile=str(hosts), launcher=LAUNCHER, connect_timeout=20, chunk=32)
    yield session
    pids = session.pids
    await session.close()
    assert all(wait_gone(pid) for pid in pids)


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.soak)])
async def test_three_hosts_answer_and_a_cut_link_is_named(ring: Session, hosts: Path, again: bool) -> None:
    events = await reply(ring, "hello", task="complete", max_tokens=6)
    assert end(events).reason == "length", end(events)
    assert text(events) and ring.facts["ranks"] == HOSTS
    third = json.loads(hosts.read_text())[2]["ssh"]
    cut = 0.0

    def at(event: Event) -> bool:
        nonlocal cut
        if isinstance(event, Text) and not cut:
            cut = time.monotonic()
            ip("-n", third, "link", "set", "eth0", "down")
        return False

    old = ring.pids
    events = await reply(ring, "hello again", task="complete", max_tokens=500, at=at)
    took = time.monotonic() - cut
    last = end(events)
    assert last.reason == "error" and last.error is not None and "is dead" in last.error["message"]
    assert third in last.error["message"] and took < 15, (took, last.error)
    for pid in old:
        assert await asyncio.to_thread(wait_gone, pid)
    ip("-n", third, "link", "set", "eth0", "up")
    if again:  # a fresh ring of three
        events = await reply(ring, "hello", task="complete", max_tokens=6)
        assert end(events).reason == "length"
