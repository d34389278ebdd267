"""The yardstick for `exo bench`: the same model on mlx-lm's BatchGenerator with nothing around it.

No events, no cancels, no text until the end; the times are taken inside the loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def preparer(loaded: Any, name: str) -> Any:
    """A Preparer that keeps no prefix and knows no config."""
    from exo_mlx.prefix_cache import PrefixIndex
    from exo_mlx.preparing import Preparer

    return Preparer(
        tokenizer=loaded.tokenizer,
        name=name,
        context=loaded.context,
        end_tokens=loaded.end_tokens,
        defaults={},
        generation=loaded.generation_config,
        index=PrefixIndex(0, 0),
    )


def finish(generator: Any, request: Request, prompt_tokens: int) -> Finished:
    """Run the one sequence that `generator` holds to its end; the times are taken here, in the loop."""
    start = time.perf_counter()
    read = first = now = start
    count = 0
    finished = False
    while not finished:
        prompts, answers = generator.next()
        now = time.perf_counter()
        read = now if any(prompt.end_of_prompt for prompt in prompts) else read
        for answer in answers:
            first = now if count == 0 else first
            count += 1
            finished = answer.finish_reason is not None
    generator.close()
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=count)
    timing = Timing(
        ttft_s=first - start,
        prefill_tps=prompt_tokens / (read - start),
        decode_tps=count / (now - read),
        total_s=now - start,
    )
    return Finished(id=request.id, reason="stop", usage=usage, timing=timing)


def open_bare(context: OpenContext) -> StreamEngine:
    from exo_mlx import blas

    blas.prepare(context.cache_dir, context.options.blas_threads)
    import mlx.core as mx
    from mlx_lm.generate import BatchGenerator

    from exo_mlx import loader
    from exo_mlx.plugin import CAPABILITIES

    loaded = loader.load(Path(context.model), cpu_dtype=context.options.cpu_dtype)
    prepare = preparer(loaded, Path(context.model).name)

    def run(request: Request, cancel: CancelToken) -> Iterator[Event]:
        tokens = prepare.tokenize(request)
        generator = BatchGenerator(
            loaded.model,
            max_tokens=request.max_tokens or 64,
            stop_tokens=[[token] for token in loaded.end_tokens],
            prefill_step_size=request.options.get("chunk") or 64,
            stream=mx.default_stream(mx.default_device()),
        )
        generator.insert([tokens])
        yield finish(generator, request, len(tokens))

    return from_generator(run, CAPABILITIES)
