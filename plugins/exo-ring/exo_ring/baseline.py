"""The yardstick for `exo bench -b ring`: the same ring with no agreement, no events and no cancels.

Every rank is told the same request and runs it through; the times are taken inside rank 0's loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from exocli import (
    CancelToken,
    Event,
    OpenContext,
    Request,
    StreamEngine,
    from_generator,
)

from exo_mlx import baseline
from exo_mlx.plugin import CAPABILITIES


def open_bare(context: OpenContext) -> StreamEngine:
    """Takes one request at a time."""
    from exo_ring import opening

    ring = opening.join(context)
    import mlx.core as mx
    from mlx_lm.generate import StopSequences
    from mlx_lm.models.cache import make_prompt_cache

    from exo_ring.agreement import Agreement
    from exo_ring.generator import RingGenerator, quiet_sampler
    from exo_ring.place import Place

    place = Place(ring, context)
    loaded = place.load()
    prepare = baseline.preparer(loaded, ring.folder.name)

    def run(request: Request, cancel: CancelToken) -> Iterator[Event]:
        tokens = prepare.tokenize(request)
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
        yield baseline.finish(generator, request, len(tokens))

    return from_generator(run, CAPABILITIES)
