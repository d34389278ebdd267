"""The ranks meet on real sockets: together they know everything, alone they say who is missing."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from exocli import Unavailable

from exo_ring.meeting import Meeting, Seat
from tests.exo_ring.ranks import free_ports


def seats(size: int) -> list[Seat]:
    return [Seat(f"host{rank}", (("127.0.0.1", port),)) for rank, port in enumerate(free_ports(size))]


def together(
    places: list[Seat],
    work: Callable[[Meeting], Any],
    *,
    ranks: list[int] | None = None,
    nonces: dict[int, str] | None = None,
    timeout: float = 10.0,
) -> dict[int, Any]:
    """What `work` returned, or the Unavailable it raised, for each rank."""
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            with Meeting(rank, places, (nonces or {}).get(rank, "n"), timeout) as meeting:
                found[rank] = work(meeting)
        except Unavailable as error:
            found[rank] = error

    wanted = ranks if ranks is not None else list(range(len(places)))
    threads = [threading.Thread(target=run, args=(rank,)) for rank in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("size", [2, 3, 5])
def test_everyone_learns_everything(size: int) -> None:
    found = together(seats(size), lambda m: m.gather({"rank": m.rank, "big": "x" * 100_000}))
    for rank in range(size):
        assert [each["rank"] for each in found[rank]] == list(range(size))


@pytest.mark.parametrize("size", [2, 3])
def test_latency_and_bandwidth_to_the_next(size: int) -> None:
    found = together(seats(size), lambda m: [m.measure(1.0), m.measure()])
    for with_bytes, without in found.values():
        assert 0 < with_bytes["latency_s"] < 1 and with_bytes["bytes_per_s"] > 1e5
        assert "bytes_per_s" not in without


def test_nobody_listens_any_more_when_the_first_one_leaves() -> None:
    """MLX's ring uses the same ports next: a connection to it must not end here."""
    places = seats(3)

    def work(meeting: Meeting) -> Any:
        meeting.gather({})
        knocks = []
        for place in places:
            with socket.socket() as knock:
                knocks.append(knock.connect_ex(place.addresses[0]))
        meeting.gather({})  # all have knocked before anyone leaves
        return knocks

    for knocks in together(places, work).values():
        assert knocks == [errno.ECONNREFUSED] * 3


def test_several_addresses_a_host() -> None:
    ports = free_ports(4)
    places = [
        Seat("a", (("127.0.0.1", ports[0]), ("127.0.0.1", ports[1]))),
        Seat("b", (("127.0.0.1", ports[2]), ("127.0.0.1", ports[3]))),
    ]
    assert [r["x"] for r in together(places, lambda m: m.gather({"x": m.rank}))[1]] == [0, 1]


def test_a_missing_neighbour_is_named_in_time() -> None:
    places = seats(3)
    start = time.monotonic()
    found = together(places, lambda m: None, ranks=[0, 1], timeout=0.5)
    assert time.monotonic() - start < 5
    ip, port = places[2].addresses[0]
    assert found[1].message.startswith(
        f"Rank 1 on host1 cannot reach rank 2 on host2 at {ip}:{port} (Connection refused): is that "
    )
    assert "Rank 2 on host2 did not connect to" in found[0].message
    assert found[1].details == {"rank": 1, "host": "host1", "peer": 2}


def test_a_busy_port_is_named_at_once() -> None:
    places = seats(2)
    with socket.create_server(places[0].addresses[0]):
        start = time.monotonic()
        found = together(places, lambda m: None, ranks=[0])
    assert time.monotonic() - start < 1
    ip, port = places[0].addresses[0]
    assert found[0].message == (
        f"Rank 0 on host0 cannot listen on {ip}:{port}: another program has the port: end it, or choose "
        "another one with -o port=N."
    )


def test_an_address_of_another_machine() -> None:
    places = [Seat("a", (("192.0.2.1", 40000),)), Seat("b", (("127.0.0.1", 40001),))]
    found = together(places, lambda m: None, ranks=[0])
    assert "the machine has no such address: correct the hostfile" in found[0].message


def test_two_rings_on_one_port_do_not_mix() -> None:
    """Rank 1 of another ring has come to this ring's place."""
    found = together(seats(2), lambda m: None, nonces={0: "one", 1: "other"}, timeout=0.5)
    assert "(another ring, or another program, answers there)" in found[0].message
    assert "(another ring, or another program, answers there)" in found[1].message


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, b"\0\0\0\2[]", b""])
def test_strangers_at_the_door_are_sent_away(said: bytes) -> None:
    places = seats(2)
    knocked = threading.Event()

    def knock() -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not knocked.is_set():
            try:
                with socket.create_connection(places[0].addresses[0], timeout=1) as stranger:
                    stranger.sendall(said)
                    knocked.set()
                    stranger.shutdown(socket.SHUT_WR)
                    stranger.recv(100)
                    return
            except OSError:
                continue

    thread = threading.Thread(target=knock)

    def late(meeting: Meeting) -> Any:
        return meeting.gather({"x": meeting.rank})

    result: dict[int, Any] = {}
    first = threading.Thread(target=lambda: result.update(together(places, late, ranks=[0])))
    first.start()
    thread.start()
    assert knocked.wait(10)
    found = together(places, late, ranks=[1])
    first.join(20)
    thread.join(20)
    assert [r["x"] for r in found[1]] == [0, 1] == [r["x"] for r in result[0]]


def test_one_that_leaves_in_between() -> None:
    def work(meeting: Meeting) -> Any:
        if meeting.rank == 1:
            return None
        return meeting.gather({})

    found = together(seats(3), work)
    assert "went away while the ring was forming" in found[0].message
    assert "rank 1 on host1" in found[0].message
