"""One rank of test_traps: each trap in turn. Prints what came of it, one JSON line a trap."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from exocli import ExoError

from exo_ring import formation
from exo_ring.agreement import Agreement
from exo_ring.collective import Collective
from exo_ring.link import Link
from exo_ring.plan import Machine, Plan, make
from tests.exo_ring.shapes import SMOL

mx.set_default_device(mx.cpu)
STREAM = mx.default_stream(mx.default_device())
GROUP = mx.distributed.init(backend="ring", strict=True)
RANK, SIZE = GROUP.rank(), GROUP.size()
LINK, COLLECTIVE = Link(GROUP, wire=mx.float16), Collective(GROUP)
MANY = (1 << 20) + 3


def plan(wire: str) -> Plan:
    machine = Machine(host="h", total=1 << 34, available=1 << 34, cores=2, ranks=2, float32=False)
    return make(SMOL, [machine] * SIZE, strategy="pipeline", wire=wire)


def same() -> str:
    formation.verify(GROUP, "nonce", plan("float32"), [{"model": "m"}])
    return "together"


def unlike_dtypes() -> None:
    """Each rank has a plan with another dtype on the wire."""
    formation.verify(GROUP, "nonce", plan("float32" if RANK else "float16"), [{"model": "m"}])


def two_rings() -> None:
    formation.verify(GROUP, f"nonce {RANK}", plan("float32"), [{"model": "m"}])


def out_of_step(carrier: Any) -> int:
    """The ranks do the same for three steps; in the third, rank 1 sees another token."""
    agreement = Agreement(carrier)
    seen = []
    for step in range(3):
        seen.append(agreement.agree(10 * step if RANK == 0 else 99))
        agreement.record([(0, 7), (1, 9 if RANK == 1 and step == 2 else 8)])
    assert seen == [0, 10, 20]
    return agreement.agree(30)


def mixed_traffic() -> str:
    """Headers, hidden states, tokens, and sums and gathers of several MiB, on the same sockets."""
    for number in range(6):
        assert LINK.pass_numbers([number, 1 << 40] if RANK == 0 else None, 2)() == [number, 1 << 40]
        hidden = mx.full((1, 700, 576), number + 0.5)
        if RANK > 0:
            assert mx.all(LINK.receive(hidden.shape) == hidden).item()
        if RANK + 1 < SIZE:
            LINK.send(hidden)
        total = mx.distributed.all_sum(mx.full((MANY,), RANK + number, dtype=mx.float32), group=GROUP)
        assert mx.all(total == sum(r + number for r in range(SIZE))).item()
        ids = mx.array([number, RANK], dtype=mx.uint32)
        assert LINK.share_tokens(ids).tolist() == [number, SIZE - 1]
        everyone = mx.distributed.all_gather(mx.full((MANY,), RANK, dtype=mx.float32), group=GROUP)
        assert mx.all(everyone.reshape(SIZE, MANY) == mx.arange(SIZE)[:, None]).item()
        assert COLLECTIVE.share_tokens(ids).tolist() == [number, 0]
        assert COLLECTIVE.pass_numbers([number, -1] if RANK == 0 else None, 2)() == [number, -1]
    return "whole"


TRAPS: dict[str, Callable[[], Any]] = {
    "same": same,
    "unlike dtypes": unlike_dtypes,
    "two rings": two_rings,
    "mixed traffic": mixed_traffic,
    "out of step, tensor": lambda: out_of_step(COLLECTIVE),
    "out of step, pipeline": lambda: out_of_step(LINK),
}


def main() -> None:
    for name, trap in TRAPS.items():
        try:
            with mx.stream(STREAM):
                answer: dict[str, Any] = {"trap": name, "found": trap()}
        except ExoError as error:
            answer = {"trap": name, "error": error.message}
        print(json.dumps(answer), flush=True)
    with mx.stream(STREAM):  # nobody leaves while another still sends
        mx.eval(mx.distributed.all_sum(mx.array([RANK]), group=GROUP))


main()
