"""The yardstick for `exo bench -b ring`: the same ring with no agreement, no events and no cancels.

Every rank is told the same request and runs it through; the times are taken inside rank 0's loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from exocli import (
    CancelToken,
    Event,
    Finished,
    OpenContext,
    Request,
    StreamEngine,
    Timing,
    Usage,
    from_generator,
)

from exo_mlx.plugin import CAPABILITIES


def open_bare(context: OpenContext) -> StreamEngine:
    """Takes one request at a time."""
    from exo_ring import opening

    opening.prepare(context)
    import mlx.core as mx
    from mlx_lm.generate import StopSequences
    from mlx_lm.models.cache import make_prompt_cache

    from exo_mlx.prefix_cache import PrefixIndex
    from exo_mlx.preparing import Preparer
    from exo_ring import formation
    from exo_ring.agreement import Agreement
    from exo_ring.generator import RingGenerator, quiet_sampler
    from exo_ring.place import Place

    ring = formation.form(context)
    place = Place(ring, context)
    loaded = place.load()
    preparer = Preparer(
        tokenizer=loaded.tokenizer,
        name=ring.folder.name,
        context=loaded.context,
        end_tokens=loaded.end_tokens,
        defaults={},
        generation=loaded.generation_config,
        index=PrefixIndex(0, 0),
    )

    def run(request: Request, cancel: CancelToken) -> Iterator[Event]:
        tokens = preparer.tokenize(request)
        stream = mx.default_stream(mx.default_device())
        generator = RingGenerator(
            loaded.model,
            carrier=place.carrier,
            agreement=Agreement(place.carrier),
            prefill_step_size=request.options.get("chunk") or 64,
            stream=stream,
        )
        generator.insert(
            [tokens],
            max_tokens=[request.max_tokens or 64],
            caches=[make_prompt_cache(loaded.model)],
            samplers=[None if place.samples else quiet_sampler],
            stop_sequences=[StopSequences([[token] for token in loaded.end_tokens])],
        )
        start = time.perf_counter()
        first = now = start
        count = 0
        finished = False
        while not finished:
            for answer in generator.next()[1]:
                now = time.perf_counter()
                first = now if count == 0 else first
                count += 1
                finished = answer.finish_reason is not None
        generator.close()
        decode = (count - 1) / (now - first) if count > 1 else 0.0
        usage = Usage(prompt_tokens=len(tokens), completion_tokens=count)
        timing = Timing(ttft_s=first - start, decode_tps=decode, total_s=now - start)
        yield Finished(id=request.id, reason="stop", usage=usage, timing=timing)

    return from_generator(run, CAPABILITIES)
