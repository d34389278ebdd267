"""The ranks meet on plain sockets before MLX does: who is there, are we the same ring, what does each have.

MLX's own start blocks for ever (and holds Python's lock) when a neighbour is missing, and takes whoever
connects. Here every wait has a deadline and every failure names rank, host and address. The same
addresses and the same direction as MLX will use: rank r listens, r - 1 connects. No mlx, no model.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exocli import Unavailable

_HELLO = "exo-ring 1"
_LIMIT = 1 << 20
_RETRY = 0.05
_ACCEPT_GRACE = 1.0
"""Seconds a rank waits longer for its caller than callers try: the caller's report says more."""
_PINGS = 21


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank's place: the host's name for messages, the addresses its ring sockets listen on."""

    host: str
    addresses: tuple[tuple[str, int], ...]


class Meeting:
    """Connections to both neighbours. A context manager; raises Unavailable naming who is missing."""

    def __init__(self, rank: int, seats: Sequence[Seat], nonce: str, timeout: float) -> None:
        self.rank, self.seats, self.size = rank, seats, len(seats)
        self._nonce = nonce
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._listeners: list[socket.socket] = []
        self._from: list[socket.socket] = []
        self._to: list[socket.socket] = []

    def __enter__(self) -> Meeting:
        try:
            self._listen()
            failure: list[Unavailable] = []
            caller = threading.Thread(target=self._accept, args=(failure,), daemon=True)
            caller.start()
            self._connect()
            caller.join()
            if failure:
                raise failure[0]
            # Before the first word: once all have spoken, nobody takes MLX's connections for this meeting's.
            self._stop_listening()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop_listening()
        for each in (*self._from, *self._to):
            each.close()

    def _stop_listening(self) -> None:
        for each in self._listeners:
            each.close()

    def keep(self) -> list[tuple[int, socket.socket]]:
        """(rank, connection) of both neighbours, no longer closed with the meeting."""
        before, after = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        return [(before, self._from.pop(0)), (after, self._to.pop(0))]

    # --------------------------------------------------------------------------------- connecting

    def _listen(self) -> None:
        for ip, port in self.seats[self.rank].addresses:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._listeners.append(listener)
            # Not SO_REUSEPORT, which MLX sets: two rings on one port must fail here, not mix there.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((ip, port))
                listener.listen(8)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    hint = "another program has the port: end it, or choose another one with -o port=N"
                elif error.errno == errno.EADDRNOTAVAIL:
                    hint = "the machine has no such address: correct the hostfile"
                else:
                    hint = str(error.strerror)
                raise self._failure(
                    f"{self._name(self.rank)} cannot listen on {ip}:{port}: {hint}."
                ) from error

    def _connect(self) -> None:
        peer = (self.rank + 1) % self.size
        for ip, port in self.seats[peer].addresses:
            self._to.append(self._connect_one(peer, ip, port))

    def _connect_one(self, peer: int, ip: str, port: int) -> socket.socket:
        last = "no answer"
        while (left := self._deadline - time.monotonic()) > 0:
            try:
                connection = socket.create_connection((ip, port), timeout=left)
            except OSError as error:
                last = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
                time.sleep(min(_RETRY, left))
                continue
            try:
                connection.settimeout(max(_RETRY, self._deadline - time.monotonic()))
                _send(connection, {"hello": _HELLO, "nonce": self._nonce, "rank": self.rank})
                answer = _receive(connection)
                if answer.get("nonce") == self._nonce:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return connection
                last = "another ring, or another program, answers there"
            except (OSError, ValueError):
                last = "something answers there that is not this ring"
            connection.close()
            time.sleep(_RETRY)
        text = f"{self._name(self.rank)} cannot reach rank {peer} on {self.seats[peer].host} at {ip}:{port} "
        hint = "is that machine on, the address right, the port open in its firewall?"
        raise self._failure(f"{text}({last}): {hint}", peer=peer)

    def _accept(self, failure: list[Unavailable]) -> None:
        peer = (self.rank - 1) % self.size
        for listener, (ip, port) in zip(self._listeners, self.seats[self.rank].addresses, strict=True):
            found = None
            while found is None:
                left = self._deadline + _ACCEPT_GRACE - time.monotonic()
                if left <= 0:
                    text = f"{self._name(peer)} did not connect to {ip}:{port} of rank {self.rank} "
                    failure.append(self._failure(f"{text}within {self._timeout:g} s.", peer=peer))
                    return
                found = self._accept_one(listener, peer, left)
            self._from.append(found)

    def _accept_one(self, listener: socket.socket, peer: int, left: float) -> socket.socket | None:
        listener.settimeout(left)
        try:
            connection, _ = listener.accept()
        except OSError:
            return None
        try:
            connection.settimeout(min(left, 2.0))  # a stranger must not hold the door
            hello = _receive(connection)
            _send(connection, {"hello": _HELLO, "nonce": self._nonce})
            if (hello.get("nonce"), hello.get("rank")) == (self._nonce, peer):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
        except (OSError, ValueError):
            pass
        connection.close()
        return None

    # ----------------------------------------------------------------------------------- talking

    def gather(self, mine: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every rank's object, by rank, on every rank."""
        found: dict[int, dict[str, Any]] = {self.rank: dict(mine)}
        passing: dict[str, Any] = {"rank": self.rank, "facts": dict(mine)}
        with self._talking():
            for _ in range(self.size - 1):
                _send(self._to[0], passing)
                passing = _receive(self._from[0])
                found[passing["rank"]] = passing["facts"]
        return [found[rank] for rank in range(self.size)]

    def measure(self, megabytes: float = 0.0) -> dict[str, float]:
        """To the next rank: `latency_s` one way (half the median round trip) and, for more than 0
        `megabytes`, `bytes_per_s`. All ranks call it; pairs take turns, so that they do not disturb
        each other."""
        result: dict[str, float] = {}
        payload = os.urandom(1 << 16) * int(megabytes * 16)
        with self._talking():
            for turn in range(self.size):
                if self.rank == turn:
                    result = self._ask(self._to[0], payload)
                if (self.rank - 1) % self.size == turn:
                    self._answer(self._from[0], len(payload))
                self.gather({})  # the turn is over for everyone
        return result

    def _ask(self, to: socket.socket, payload: bytes) -> dict[str, float]:
        times = []
        for _ in range(_PINGS):
            start = time.perf_counter()
            to.sendall(b"p")
            _exactly(to, 1)
            times.append(time.perf_counter() - start)
        found = {"latency_s": statistics.median(times) / 2}
        if payload:
            start = time.perf_counter()
            to.sendall(payload)
            _exactly(to, 1)
            found["bytes_per_s"] = len(payload) / (time.perf_counter() - start)
        return found

    def _answer(self, source: socket.socket, size: int) -> None:
        for _ in range(_PINGS):
            source.sendall(_exactly(source, 1))
        if size:
            _exactly(source, size)
            source.sendall(b"d")

    def _talking(self) -> _Talk:
        for each in (*self._from, *self._to):
            each.settimeout(self._timeout)
        return _Talk(self)

    def _name(self, rank: int) -> str:
        return f"Rank {rank} on {self.seats[rank].host}"

    def _failure(self, text: str, peer: int | None = None) -> Unavailable:
        return Unavailable(text, rank=self.rank, host=self.seats[self.rank].host, peer=peer)


class _Talk:
    """Turns a broken connection into an error that names both neighbours."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, ValueError)):
            m = self._meeting
            before, after = (m.rank - 1) % m.size, (m.rank + 1) % m.size
            who = (
                m._name(before)
                if before == after
                else f"{m._name(before)} or rank {after} on {m.seats[after].host}"
            )
            raise m._failure(f"{who} went away while the ring was forming.") from error


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode()
    connection.sendall(len(data).to_bytes(4, "big") + data)


def _receive(connection: socket.socket) -> dict[str, Any]:
    """One object, and not a byte after it. Raises OSError at the end, ValueError for anything else."""
    length = int.from_bytes(_exactly(connection, 4), "big")
    if length > _LIMIT:
        raise ValueError("the message is too long")
    message = json.loads(_exactly(connection, length))
    if not isinstance(message, dict):
        raise ValueError("a message must be an object")
    return message


def _exactly(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    left = memoryview(data)
    while left:
        got = connection.recv_into(left)
        if not got:
            raise OSError("closed")
        left = left[got:]
    return data
