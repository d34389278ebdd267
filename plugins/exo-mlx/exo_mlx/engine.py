"""The step engine on mlx-lm's BatchGenerator: continuous batching, cancel between chunks and tokens.

A cancel's way: `step` looks at each request's token → `_leave` takes the sequence out of the batch, keeps
its KV → Finished("cancelled") with the receipt. Runs in a worker; knows nothing of processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    Text,
    Usage,
)
from mlx_lm.generate import BatchGenerator, StopSequences
from mlx_lm.models.cache import make_prompt_cache

from exo_mlx import loader
from exo_mlx.options import Options
from exo_mlx.plugin import CAPABILITIES
from exo_mlx.prefix_cache import KeptCaches, PrefixIndex, trimmable
from exo_mlx.preparing import Preparer
from exo_mlx.sampling import Settings, logprob_entry, make_sampler
from exo_mlx.text import TextStream

SMALLEST_SHARE = 8
"""Tokens a step of one prompt when several share the chunk."""
PREFILLS = 4
"""Prompts that share a chunk; the others wait, so that a long queue does not slow the first ones."""


@dataclass
class _Live:
    prepared: Prepared
    cancel: CancelToken
    uid: int
    text: TextStream
    cached: int
    processed: int
    decoding: bool = False
    completion: int = 0
    top_logprobs: int | None = None
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.prepared.id

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prepared.prompt_tokens,
            cached_tokens=self.cached,
            completion_tokens=self.completion,
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
        detokenizer = self._loaded.tokenizer.detokenizer
        text = TextStream(detokenizer, settings["stop"], continuing=settings["continuing"])
        self._live[uid] = _Live(
            prepared=prepared,
            cancel=cancel,
            uid=uid,
            text=text,
            cached=cached,
            processed=cached,
            top_logprobs=settings["logprobs"],
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
        stop: str | None = None
        text = ""
        if answer.finish_reason != "stop":  # the generator's "stop" is an end token: it has no text
            live.completion += 1
            text, stop = live.text.feed(answer.token)
            if live.top_logprobs is not None:
                decode = self._loaded.tokenizer.decode
                entry = logprob_entry(answer.logprobs, answer.token, live.top_logprobs, decode)
                live.logprobs.append(entry)
        if stop is None and answer.finish_reason is not None:
            rest, stop = live.text.finish()
            text += rest
        self._say(live, text, last=stop is not None or answer.finish_reason is not None)
        if stop is not None or answer.finish_reason is not None:
            if answer.finish_reason is not None:
                caches, tokens = answer.prompt_cache, answer.all_tokens
            else:
                caches, tokens = self._take_out(live)
            self._keep(live, caches, tokens)
            del self._live[live.uid]
            reason: Any = "stop" if stop is not None else answer.finish_reason
            self._events.append(Finished(id=live.id, reason=reason, stop=stop, usage=live.usage))

    def _say(self, live: _Live, text: str, last: bool) -> None:
        if text or (last and live.logprobs):
            logprobs, live.logprobs = live.logprobs, []
            known = logprobs if live.top_logprobs is not None else None
            self._events.append(Text(id=live.id, text=text, logprobs=known))

    # -------------------------------------------------------------------------------------- leaving

    def _leave(self, live: _Live) -> None:
        """A cancelled request leaves the batch; what was computed for it is kept."""
        caches, tokens = self._take_out(live)
        if live.decoding:
            text, _ = live.text.finish()
            self._say(live, text, last=True)
        kept = self._keep(live, caches, tokens)
        receipt = Receipt(
            phase="decode" if live.decoding else "prefill",
            processed=live.processed,
            total=live.prepared.prompt_tokens,
            kept_tokens=kept,
        )
        del self._live[live.uid]
        self._context.log(f"cancelled {live.id}: {receipt}")
        self._events.append(Finished(id=live.id, reason="cancelled", usage=live.usage, cancel=receipt))

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
