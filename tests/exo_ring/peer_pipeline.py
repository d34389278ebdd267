"""One rank of test_pipeline: every architecture at every split or tensor parallel, against the whole model.

argv: a JSON list of [name, split], null = tensor parallel. Prints one JSON line a case, from the last rank.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from exo_ring import tensor
from exo_ring.agreement import Agreement, Carrier
from exo_ring.collective import Collective
from exo_ring.generator import RingGenerator, quiet_sampler
from exo_ring.link import Link
from exo_ring.pipeline import Stage
from tests.exo_ring.models import CONFIGS, build

CHUNK = 8
mx.set_default_device(mx.cpu)
STREAM = mx.default_stream(mx.default_device())


def schedule(
    generator: Any, model: Any, agree: Callable[[int], None], sampler: Any, can_trim: bool
) -> dict[str, Any]:
    """Requests that come, go, are cut off and come back while others run. → tokens and logprobs."""
    prompts = {
        name: [(7 * i + len(name) * k) % 60 for i in range(k)]
        for name, k in (("a", 41), ("b", 5), ("c", 23), ("d", 1))
    }
    out: dict[str, list[int]] = {name: [] for name in prompts}
    rows: dict[str, list[Any]] = {name: [] for name in prompts}
    names: dict[int, str] = {}

    def insert(name: str, caches: Any = None, known: list[int] | None = None) -> int:
        known = known or []
        caches = caches or make_prompt_cache(model)
        rest = (prompts[name] + out[name])[len(known) :]
        (uid,) = generator.insert([rest], [12 - len(out[name])], [caches], [known], [sampler])
        names[uid] = name
        return uid

    events = {2: "c", 3: "d"}
    a = insert("a")
    insert("b")
    step = 0
    kept: Any = None
    while len(out["a"]) < 12 or len(names) < 5:
        if step in events:
            insert(events[step])
        if step == 4:  # in the middle of its prefill
            kept = generator.remove([a], return_prompt_caches=True)[a]
        if step == 7:
            a = insert("a", *kept)
        if step == 12:  # while it decodes
            caches, known = generator.remove([a], return_prompt_caches=True)[a]
            if can_trim:
                trim_prompt_cache(caches, 1)
                known = known[:-1]
            else:
                out["a"].append(5)  # a sliding window cannot go back: as if one more token had come
            a = insert("a", caches, known)
        step += 1
        agree(step)
        for answer in generator.next()[1]:
            out[names[answer.uid]].append(answer.token)
            rows[names[answer.uid]].append(answer.logprobs)
    return {"tokens": out, "rows": {name: mx.stack(r) for name, r in rows.items()}}


def filled(model: Any) -> list[Any]:
    caches = make_prompt_cache(model)
    model(mx.zeros((1, 16), mx.uint32), cache=caches)
    return caches


def main() -> None:
    group = mx.distributed.init(backend="ring", strict=True)
    rank, size = group.rank(), group.size()
    last = rank == size - 1
    link = Link(group, wire=mx.float32)
    for name, split in json.loads(sys.argv[1]):
        whole = build(name)
        if split is None:
            carrier: Carrier = Collective(group)
            part, samples = tensor.shard(build(name), group, "keep"), rank == 0
        else:
            start = sum(split[:rank])
            carrier = link
            part = Stage(whole, CONFIGS[name]["model_type"], start, start + split[rank], link)
            samples = last
        # A fact of the whole model: a stage without sliding windows must not decide otherwise.
        can_trim = can_trim_prompt_cache(filled(whole))
        agreement = Agreement(carrier)

        def agree(received: int, agreement: Agreement = agreement) -> None:
            assert agreement.agree(received) == received

        with mx.stream(STREAM):
            generator = RingGenerator(
                part, carrier=carrier, agreement=agreement, prefill_step_size=CHUNK, stream=STREAM
            )
            found = schedule(generator, part, agree, None if samples else quiet_sampler, can_trim)
            if not last:
                continue
            alone = BatchGenerator(whole, prefill_step_size=CHUNK, stream=STREAM)
            expected = schedule(alone, whole, lambda received: None, None, can_trim)
        off = max(mx.abs(found["rows"][n] - expected["rows"][n]).max().item() for n in found["rows"])
        print(
            json.dumps(
                {
                    "case": [name, split],
                    "same": found["tokens"] == expected["tokens"],
                    "off": off,
                    "distinct": len(set(expected["tokens"]["a"])),
                    "lengths": [len(t) for t in found["tokens"].values()],
                }
            ),
            flush=True,
        )
    with mx.stream(STREAM):  # nobody leaves while another still sends
        mx.eval(mx.distributed.all_sum(mx.array([rank]), group=group))


main()
