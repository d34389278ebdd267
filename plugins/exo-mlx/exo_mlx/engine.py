"""The step engine on mlx-lm's BatchGenerator: continuous batching, cancel between chunks and tokens.

A cancel's way: `step` looks at each request's token → `_leave` takes the sequence out of the batch, keeps
its KV → Finished("cancelled") with the receipt. Runs in a worker; knows nothing of processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from exocli import (
    WARM_UP_CHUNK,
    CancelToken,
    Event,
    Finished,
    OpenContext,
    Prepared,
    Progress,
    Receipt,
    Request,
    StepEngine,
    Usage,
)
from mlx_lm.generate import BatchGenerator, StopSequences
from mlx_lm.models.cache import make_prompt_cache

from exo_mlx import loader
from exo_mlx.options import Options
from exo_mlx.output import Output
from exo_mlx.plugin import CAPABILITIES
from exo_mlx.prefix_cache import KeptCaches, PrefixIndex, trimmable
from exo_mlx.preparing import Preparer
from exo_mlx.sampling import Settings, logprob_entry, make_sampler

SMALLEST_SHARE = 8
"""Tokens a step of one prompt when several share the chunk."""
PREFILLS = 4
"""Prompts that share a chunk; the others wait, so that a long queue does not slow the first ones."""


@dataclass
class _Live:
    prepared: Prepared
    cancel: CancelToken
    uid: int
    output: Output
    cached: int
    processed: int
    decoding: bool = False

    @property
    def id(self) -> str:
        return self.prepared.id

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prepared.prompt_tokens,
            cached_tokens=self.cached,
            completion_tokens=self.output.tokens,
            reasoning_tokens=self.output.reasoning_tokens,
        )


class MlxEngine(StepEngine):
    def __init__(self, context: OpenContext) -> None:
        options: Options = context.options
        self._context = context
        self._options = options
        self._rank = context.rank
        self._stream = mx.default_stream(mx.default_device())
        loaded = self._loaded = self.load(context)
        limits = [n for n in (loaded.context, options.context) if n]
        self.capabilities = replace(
            CAPABILITIES,
            context=min(limits) if limits else None,
            tasks=("chat", "complete") if loaded.tokenizer.has_chat_template else ("complete",),
        )
        self._index = PrefixIndex(options.cache_entries, options.cache_tokens)
        self._kept = KeptCaches()
        self._preparer = Preparer(
            tokenizer=loaded.tokenizer,
            name=Path(context.model).name,
            context=self.capabilities.context,
            end_tokens=loaded.end_tokens,
            defaults=context.defaults,
            generation=loaded.generation_config,
            index=self._index,
        )
        self._live: dict[int, _Live] = {}
        self._events: list[Event] = []
        self._chunk = options.chunk or WARM_UP_CHUNK
        self._prefilled = self._decoded = 0
        self._generator = self.make_generator(
            loaded.model,
            completion_batch_size=CAPABILITIES.max_concurrency,
            prefill_batch_size=PREFILLS,
            prefill_step_size=self._chunk,
            stream=self._stream,
        )

    def load(self, context: OpenContext) -> loader.Loaded:
        """The model this rank runs; a ring overrides it."""
        return loader.load(
            Path(context.model),
            cpu_dtype=context.options.cpu_dtype,
            progress=context.progress,
            force=context.options.force,
        )

    def make_generator(self, model: Any, **settings: Any) -> BatchGenerator:
        """What runs the batch; a ring's shares the tokens among the ranks."""
        return BatchGenerator(model, **settings)

    def can_trim(self, caches: list[Any]) -> bool:
        """May these KV caches be cut back to fewer tokens? A fact of the whole model, on every rank."""
        return trimmable(caches)

    def describe(self) -> Mapping[str, Any]:
        loaded = self._loaded
        return {
            "dtype": loaded.dtype,
            "device": str(mx.default_device()),
            "context": self.capabilities.context,
            "weight_bytes": loaded.nbytes,
            "kv_bytes_per_token": loaded.kv_bytes,
            "notes": list(loaded.notes),
        }

    # ---------------------------------------------------------------------------- requests come in

    def prepare(self, request: Request) -> Prepared:
        return self._preparer.prepare(request)

    def submit(self, prepared: Prepared, cancel: CancelToken) -> None:
        caches = self._kept.take(prepared.reuse) if prepared.reuse else None
        cached = int(prepared.reuse["tokens"]) if prepared.reuse and caches is not None else 0
        settings = prepared.settings
        tokens = list(prepared.tokens)
        sampling = Settings(**{name: settings[name] for name in Settings.__dataclass_fields__})
        vocabulary = len(self._loaded.tokenizer)
        (uid,) = self._generator.insert_segments(
            [[tokens[cached:]]],
            max_tokens=[prepared.max_tokens],
            caches=[caches if caches is not None else make_prompt_cache(self._loaded.model)],
            all_tokens=[tokens[:cached]],
            samplers=[self.sampler(sampling, vocabulary)],
            stop_sequences=[StopSequences([[token] for token in settings["end"]])],
        )
        self._live[uid] = _Live(
            prepared=prepared,
            cancel=cancel,
            uid=uid,
            output=Output(prepared.id, self._loaded.tokenizer, settings),
            cached=cached,
            processed=cached,
        )
        total = prepared.prompt_tokens
        self._events.append(Progress(id=prepared.id, processed=cached, total=total, cached=cached))

    def sampler(self, settings: Settings, vocabulary: int) -> Any:
        """How tokens are drawn; a ring draws them on one rank."""
        return make_sampler(settings, vocabulary)

    def tune(self, chunk: int) -> None:
        if self._options.chunk is None:
            self._chunk = chunk

    def apply(self, command: Mapping[str, Any]) -> None:
        self._kept.evict(command["evict"])

    # --------------------------------------------------------------------------------------- a step

    def step(self) -> Sequence[Event]:
        for live in [live for live in self._live.values() if live.cancel.cancelled]:
            self._leave(live)
        self._prefilled = self._decoded = 0
        if self._live:
            self._share_chunk()
            with mx.stream(self._stream):
                prompts, generated = self._generator.next()
                for answer in generated:
                    self._on_token(self._live[answer.uid], answer)
                for prompt in prompts:
                    self._on_prompt(self._live[prompt.uid], prompt)
        events, self._events = self._events, []
        return events

    def last_step(self) -> Mapping[str, Any]:
        return {"prefill_tokens": self._prefilled, "decoded": self._decoded}

    def _share_chunk(self) -> None:
        prefilling = sum(not live.decoding for live in self._live.values())
        share = max(SMALLEST_SHARE, self._chunk // max(1, min(prefilling, PREFILLS)))
        # A prompt batch splits again by a size of its own, which it took when it was made.
        self._generator.prefill_step_size = self._generator._prompt_batch.prefill_step_size = share

    def _on_prompt(self, live: _Live, answer: Any) -> None:
        processed = live.cached + answer.progress[0]
        self._prefilled += processed - live.processed
        live.processed = processed
        live.decoding = answer.end_of_prompt
        total = live.prepared.prompt_tokens
        self._events.append(Progress(id=live.id, processed=processed, total=total, cached=live.cached))

    def _on_token(self, live: _Live, answer: Any) -> None:
        self._decoded += 1
        if answer.finish_reason != "stop":  # the generator's "stop" is an end token: it has no text
            self._events += live.output.feed(answer.token, self._logprob(live, answer))
        if answer.finish_reason is not None:
            self._keep(live, answer.prompt_cache, answer.all_tokens)
        elif live.output.stop is not None:
            self._keep(live, *self._take_out(live))
        else:
            return
        self._end(live, answer.finish_reason)

    def _logprob(self, live: _Live, answer: Any) -> dict[str, Any] | None:
        top = live.prepared.settings["logprobs"]
        if top is None:
            return None
        return logprob_entry(answer.logprobs, answer.token, top, self._loaded.tokenizer.decode)

    def _end(self, live: _Live, reason: Any, cancel: Receipt | None = None) -> None:
        del self._live[live.uid]
        output = live.output
        events, reason = output.finish(reason)
        stop = output.stop
        finished = Finished(id=live.id, reason=reason, stop=stop, usage=live.usage, cancel=cancel)
        self._events += [*events, finished]

    # -------------------------------------------------------------------------------------- leaving

    def _leave(self, live: _Live) -> None:
        """A cancelled request leaves the batch; what was computed for it is kept."""
        kept = self._keep(live, *self._take_out(live))
        receipt = Receipt(
            phase="decode" if live.decoding else "prefill",
            processed=live.processed,
            total=live.prepared.prompt_tokens,
            kept_tokens=kept,
        )
        self._context.log(f"cancelled {live.id}: {receipt}")
        self._end(live, "cancelled", receipt)

    def _take_out(self, live: _Live) -> tuple[list[Any], list[int]]:
        with mx.stream(self._stream):
            return self._generator.remove([live.uid], return_prompt_caches=True)[live.uid]  # type: ignore[no-any-return]

    def _keep(self, live: _Live, caches: list[Any], tokens: list[int]) -> int:
        """Keep the KV of `tokens`; → how many tokens of KV outlive the request."""
        if live.processed == live.cached and not live.decoding:
            return live.cached  # nothing new: the entry it came from is still there
        with mx.stream(self._stream):
            self._kept.put(live.id, caches)
        if self._rank != 0:
            return len(tokens)
        kept, gone = self._index.add(live.id, tokens, self.can_trim(caches))
        if gone:
            self._context.ask({"evict": gone})
        return len(tokens) if kept else 0

    # --------------------------------------------------------------------------------- life's ends

    def warm_up(self) -> float | None:
        caches = make_prompt_cache(self._loaded.model)
        with mx.stream(self._stream):
            start = time.perf_counter()
            self._loaded.model(mx.zeros((1, WARM_UP_CHUNK), mx.uint32), cache=caches)
            mx.eval([cache.state for cache in caches])
            took = time.perf_counter() - start
            mx.eval(self._loaded.model(mx.zeros((1, 1), mx.uint32), cache=caches))
        return took

    def close(self) -> None:
        self._generator.close()
