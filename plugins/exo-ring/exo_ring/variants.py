"""What `exo bench -b ring` compares: one rank alone, and other splits. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from exocli import Variant

from exo_mlx.options import Options as MlxOptions
from exo_ring.opening import threads
from exo_ring.options import Options

ONE = "mlx"
"""The backend that is one rank."""
SHARES = (1 / 2, 1 / 6, 5 / 6)
"""Of the layers, for the first rank: even, and with a slow stage at either end."""


def variants(options: Options, facts: Mapping[str, Any]) -> Iterable[Variant]:
    """`BackendSpec.variants`. One rank has as many BLAS threads as each of the ring's has."""
    same = {field.name: getattr(options, field.name) for field in fields(MlxOptions)}
    here = facts["ranks"] if options.hostfile is None else 1
    same["blas_threads"] = threads(options.blas_threads, here)
    yield Variant(name="one rank", backend=ONE, options=same, measure="prefill")
    if facts["strategy"] == "pipeline":
        for split in splits(sum(facts["split"]), facts["ranks"]):
            text = "/".join(str(count) for count in split)
            yield Variant(name=f"split {text}", options={"split": split}, measure="cancel")


def splits(layers: int, ranks: int) -> list[tuple[int, ...]]:
    """`layers` divided so that the first rank has each of SHARES, the others alike; at least one a rank."""
    found = []
    for share in SHARES:
        first = max(1, min(layers - ranks + 1, round(layers * share)))
        rest, more = divmod(layers - first, ranks - 1)
        found.append((first, *(rest + (rank < more) for rank in range(ranks - 1))))
    return list(dict.fromkeys(found))
