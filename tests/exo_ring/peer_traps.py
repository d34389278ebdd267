"""One rank of test_traps: argv[1] names the trap. Prints what came of it as one JSON line."""

from __future__ import annotations

import json
import sys
from typing import Any

import mlx.core as mx
from exocli import ExoError

from exo_ring import formation
from exo_ring.agreement import Agreement
from exo_ring.link import Link
from exo_ring.plan import Machine, Plan, make
from exo_ring.tensor import Collective
from tests.exo_ring.test_plan import SMOL

mx.set_default_device(mx.cpu)
STREAM = mx.default_stream(mx.default_device())
GROUP = mx.distributed.init(backend="ring", strict=True)
RANK, SIZE = GROUP.rank(), GROUP.size()


def plan(wire: str) -> Plan:
    machine = Machine(host="h", total=1 << 34, available=1 << 34, cores=2, ranks=2, float32=False)
    return make(SMOL, [machine] * SIZE, strategy="pipeline", wire=wire)


def unlike_dtypes() -> Any:
    """Each rank has a plan with another dtype on the wire."""
    formation.verify(GROUP, "nonce", plan(["float32", "float16"][RANK]), [{"model": "m"}])


def two_rings() -> Any:
    formation.verify(GROUP, f"nonce {RANK}", plan("float32"), [{"model": "m"}])


def same() -> Any:
    formation.verify(GROUP, "nonce", plan("float32"), [{"model": "m"}])
    return "together"


def out_of_step(carrier: Any) -> Any:
    """The ranks do the same for three steps; in the third, rank 1 sees another token."""
    agreement = Agreement(carrier)
    seen = []
    for step in range(3):
        seen.append(agreement.agree(10 * step if RANK == 0 else 99))
        agreement.record([(0, 7), (1, 8 if RANK == 0 or step < 2 else 9)])
    assert seen == [0, 10, 20]
    return agreement.agree(30)


def mixed_traffic() -> Any:
    """Headers, hidden states, tokens, and the sums and gathers of several MiB that a model may make."""
    link, collective = Link(GROUP, wire=mx.float16), Collective(GROUP)
    big = (1 << 20) + 3
    for number in range(8):
        assert link.pass_numbers([number, 1 << 40] if RANK == 0 else None, 2) == [number, 1 << 40]
        hidden = mx.full((1, 700, 576), number + 0.5)
        if RANK > 0:
            assert mx.all(link.receive(hidden.shape) == hidden).item()
        if RANK + 1 < SIZE:
            link.send(hidden)
        total = mx.distributed.all_sum(mx.full((big,), RANK + number, dtype=mx.float32), group=GROUP)
        assert mx.all(total == sum(r + number for r in range(SIZE))).item()
        ids = mx.array([number, RANK], dtype=mx.uint32)
        assert link.share_tokens(ids).tolist() == [number, SIZE - 1]
        everyone = mx.distributed.all_gather(mx.full((big,), RANK, dtype=mx.float32), group=GROUP)
        assert mx.all(everyone.reshape(SIZE, big) == mx.arange(SIZE)[:, None]).item()
        assert collective.share_tokens(ids).tolist() == [number, 0]
        assert collective.pass_numbers([number, -1] if RANK == 0 else None, 2) == [number, -1]
    return "whole"


def main() -> None:
    trap = sys.argv[1]
    try:
        with mx.stream(STREAM):
            match trap:
                case "out-of-step-pipeline":
                    found = out_of_step(Link(GROUP, wire=mx.float32))
                case "out-of-step-tensor":
                    found = out_of_step(Collective(GROUP))
                case _:
                    found = globals()[trap.replace("-", "_")]()
            answer = {"found": found}
            if not trap.startswith("out-of-step"):  # nobody leaves while another still sends
                mx.eval(mx.distributed.all_sum(mx.array([RANK]), group=GROUP))
    except ExoError as error:
        answer = {"error": error.message}
    print(json.dumps(answer), flush=True)


main()
