"""The step engine on mlx-lm's BatchGenerator: continuous batching, cancel between chunks and tokens.

A cancel's way: `step` looks at each request's token → `_leave` takes the sequence out of the batch, keeps
its KV → Finished("cancelled") with the receipt. Runs in a worker; knows nothing of processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from exocli import (
    WARM_UP_CHUNK,
    CancelToken,
    Event,
    ExoError,
    OpenContext,
    Prepared,
    Receipt,
    Request,
    StepEngine,
)
from mlx_lm.generate import BatchGenerator, StopSequences

from exo_mlx import draft, guard, kv_budget, loader, memory
from exo_mlx.batch import Generator
from exo_mlx.caches import Caches, trimmable
from exo_mlx.live import Live
from exo_mlx.options import LocalOptions, Options
from exo_mlx.output import Output
from exo_mlx.plugin import CAPABILITIES
from exo_mlx.prefix_cache import KeptCaches, PrefixIndex
from exo_mlx.preparing import Preparer
from exo_mlx.sampling import Settings, logprob_entry, make_sampler
from exo_mlx.speculative import SpeculativeGenerator, cut
from exo_mlx.template import ChatTemplate

SMALLEST_SHARE = 4
"""Tokens a step of one prompt when several share the chunk."""
PREFILLS = 8
"""Prompts that share a chunk; the others wait, so that a long queue does not slow the first ones."""


class MlxEngine(StepEngine):
    def __init__(self, context: OpenContext) -> None:
        options: Options = context.options
        self._context = context
        self._options = options
        self._rank = context.rank
        self._stream = mx.default_stream(mx.default_device())
        loaded = self.load(context)
        name = Path(context.model).name
        self._caches = Caches(loaded.model, name, options.kv_bits, options.kv_group_size)
        trims = self._caches.trims_below
        self._drafter = draft.open_drafter(options, loaded, trims, context.backend, self._load_draft)
        self._loaded = draft.beside(loaded, self._drafter, trims)
        limits = [n for n in (loaded.context, options.context) if n]
        concurrency = CAPABILITIES.max_concurrency if self._caches.batched else 1
        self._budget = budget = self._share_memory(concurrency)
        self.capabilities = replace(
            CAPABILITIES,
            context=min(limits) if limits else None,
            max_concurrency=concurrency,
            kv_tokens=budget.running,
            kv_padded=True,
            tasks=("chat", "complete") if loaded.tokenizer.has_chat_template else ("complete",),
            tools=ChatTemplate(loaded.tokenizer, name).takes_tools(),
            reasoning=loaded.tokenizer.has_thinking,
        )
        self._index = PrefixIndex(budget.kept_entries, budget.kept_tokens)
        self._kept = KeptCaches()
        self._preparer = Preparer(
            tokenizer=loaded.tokenizer,
            name=name,
            context=self.capabilities.context,
            kv_tokens=budget.running,
            trims_below=self.trims_below,
            end_tokens=loaded.end_tokens,
            defaults=context.defaults,
            generation=loaded.generation_config,
            index=self._index,
        )
        self._live: dict[int, Live] = {}
        self._events: list[Event] = []
        self._chunk = options.chunk or WARM_UP_CHUNK
        self._prefilled = self._decoded = 0
        self._generator = self.make_generator(
            loaded.model,
            completion_batch_size=concurrency,
            prefill_batch_size=min(PREFILLS, concurrency),
            prefill_step_size=self._chunk,
            stream=self._stream,
        )

    def load(self, context: OpenContext) -> loader.Loaded:
        """The model this rank runs; a ring overrides it."""
        options = context.options
        adapter = options.adapter if isinstance(options, LocalOptions) else None
        return loader.load(
            Path(context.model),
            cpu_dtype=options.cpu_dtype,
            progress=context.progress,
            force=options.force,
            adapter=Path(adapter) if adapter else None,
            chat_template=Path(options.chat_template) if options.chat_template else None,
        )

    def _load_draft(self, path: Path) -> loader.Loaded:
        options = self._options
        progress = self._context.progress
        return loader.load(path, cpu_dtype=options.cpu_dtype, progress=progress, force=options.force)

    def make_generator(self, model: Any, **settings: Any) -> BatchGenerator:
        """What runs the batch; a ring's shares the tokens among the ranks."""
        # On a GPU passes overlap with what Python does, and one of a single token is short.
        on_cpu = mx.default_device() == mx.cpu
        settings |= {"eager": on_cpu, "joined": on_cpu and self.trims_below is None}
        if self._drafter is None:
            return Generator(model, **settings)
        return SpeculativeGenerator(model, drafter=self._drafter, **settings)

    # --------------------------------------------------------------- what the whole model's caches allow

    def can_trim(self, caches: list[Any]) -> bool:
        """May these KV caches, as they are now, be cut back to fewer tokens? On every rank alike."""
        return trimmable(caches)

    @property
    def trims_below(self) -> int | None:
        """A cache that holds fewer tokens can be cut back; None = always. On every rank alike."""
        return self._caches.trims_below

    def free(self) -> int | None:
        """Bytes that the KV caches of this rank may take, now that the weights are there; None = unknown."""
        return memory.available()

    def least(self, numbers: Sequence[int]) -> list[int]:
        """The smallest of each over all ranks."""
        return list(numbers)

    def _share_memory(self, requests: int) -> kv_budget.Budget:
        options = self._options
        drafts = self._drafter.footprint if self._drafter is not None else kv_budget.Footprint()
        own = kv_budget.divide(
            self.free(),
            self._caches.footprint + drafts,
            requests=requests,
            kept_tokens=options.cache_tokens,
            kept_entries=options.cache_entries,
        )
        unbounded = 1 << 62
        running = unbounded if own.running is None or options.force else own.running
        running, tokens, entries = self.least([running, own.kept_tokens, own.kept_entries])
        bound = options.kv_budget or (None if running == unbounded else running)
        return kv_budget.Budget(running=bound, kept_tokens=tokens, kept_entries=entries)

    def describe(self) -> Mapping[str, Any]:
        loaded = self._loaded
        return {
            "dtype": loaded.dtype,
            "device": str(mx.default_device()),
            "context": self.capabilities.context,
            "weight_bytes": loaded.nbytes,
            "kv_bytes_per_token": self._caches.footprint.token,
            "kv_bytes_per_request": self._caches.footprint.fixed,
            "kv_bits": self._options.kv_bits,
            "speculation": self._drafter.name if self._drafter is not None else None,
            "kv_tokens": self._budget.running,
            "cache_tokens": self._budget.kept_tokens,
            "notes": [*loaded.notes, *self._caches.notes],
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
        processors = self.processors(prepared)
        # The end of a segment is the end of a step: there a copy of the caches is kept.
        keep_at = max(cached, settings["keep_at"] or 0)
        (uid,) = self._generator.insert_segments(
            [[tokens[cached:keep_at], tokens[keep_at:]]],
            max_tokens=[prepared.max_tokens],
            caches=[caches if caches is not None else self._caches.make()],
            all_tokens=[tokens[:cached]],
            samplers=[self.sampler(sampling)],
            logits_processors=[[processors] if processors else []],
            stop_sequences=[StopSequences([[token] for token in settings["end"]])],
        )
        live = self._live[uid] = Live(
            prepared=prepared,
            cancel=cancel,
            uid=uid,
            output=Output(prepared.id, self._loaded.tokenizer, settings),
            guard=processors,
            cached=cached,
            processed=cached,
            keep_at=keep_at,
        )
        self._events.append(live.progress)

    def sampler(self, settings: Settings) -> Any:
        """How tokens are drawn; a ring draws them on one rank."""
        return make_sampler(settings)

    def processors(self, prepared: Prepared) -> guard.Guard | None:
        """What changes the logits before a draw; a ring has it on one rank."""
        return guard.make(prepared, self._preparer.grammars)

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
                for prompt in prompts:
                    self._on_prompt(self._live[prompt.uid], prompt)
                for answer in generated:
                    if answer.uid not in self._live:
                        continue  # a token before it, in the same pass, was the last one
                    live = self._live[answer.uid]
                    if (error := self.failure(live, answer)) is None:
                        self._on_token(live, answer)
                    else:
                        self._fail(live, answer, error)
        events, self._events = self._events, []
        return events

    def last_step(self) -> Mapping[str, Any]:
        return {"prefill_tokens": self._prefilled, "decoded": self._decoded}

    def _share_chunk(self) -> None:
        prefilling = sum(not live.decoding for live in self._live.values())
        share = max(SMALLEST_SHARE, self._chunk // max(1, min(prefilling, PREFILLS)))
        # A prompt batch splits again by a size of its own, which it took when it was made.
        self._generator.prefill_step_size = self._generator._prompt_batch.prefill_step_size = share

    def _on_prompt(self, live: Live, answer: Any) -> None:
        processed = live.cached + answer.progress[0]
        self._prefilled += processed - live.processed
        live.processed = processed
        live.decoding = answer.end_of_prompt
        if live.cached < processed == live.keep_at:
            with mx.stream(self._stream):
                caches, tokens = self._generator.extract_cache([live.uid])[live.uid]
            self._store(f"{live.entry}/prompt", caches, tokens)
        self._events.append(live.progress)

    def _on_token(self, live: Live, answer: Any) -> None:
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

    def _logprob(self, live: Live, answer: Any) -> dict[str, Any] | None:
        top = live.prepared.settings["logprobs"]
        if top is None:
            return None
        return logprob_entry(answer.logprobs, answer.token, top, self._loaded.tokenizer.decode)

    def failure(self, live: Live, answer: Any) -> ExoError | None:
        """Why this token is none of the request's: its own processors failed in the draw."""
        if live.guard is None:
            return None
        draw = live.guard.take()
        if draw.logprobs is not None:
            answer.logprobs = draw.logprobs
        if draw.error is not None:
            self._context.log(f"the sampling of {live.id} failed: {draw.error.message}")
        return draw.error

    def _fail(self, live: Live, answer: Any, error: ExoError) -> None:
        """A request ends by its own fault; the batch goes on."""
        if answer.finish_reason is None:
            self._take_out(live)
        self._end(live, "error", error=error)

    def _end(
        self, live: Live, reason: Any, cancel: Receipt | None = None, error: ExoError | None = None
    ) -> None:
        del self._live[live.uid]
        self._events += live.finish(reason, cancel, error)

    # -------------------------------------------------------------------------------------- leaving

    def _leave(self, live: Live) -> None:
        """A cancelled request leaves the batch; what was computed for it is kept."""
        receipt = live.receipt(self._keep(live, *self._take_out(live)))
        self._context.log(f"cancelled {live.id}: {receipt}")
        self._end(live, "cancelled", receipt)

    def _take_out(self, live: Live) -> tuple[list[Any], list[int]]:
        with mx.stream(self._stream):
            caches, tokens = self._generator.remove([live.uid], return_prompt_caches=True)[live.uid]
        cut(caches, tokens, live.prepared.prompt_tokens + live.output.tokens)
        return caches, tokens

    def _keep(self, live: Live, caches: list[Any], tokens: list[int]) -> int:
        """Keep the KV of `tokens`; → how many tokens of KV outlive the request."""
        if live.processed == live.cached and not live.decoding:  # nothing new
            reuse = live.prepared.reuse
            if not live.cached or (reuse is not None and reuse["entry"] in self._kept):
                return live.cached
        return self._store(live.entry, caches, tokens)

    def _store(self, entry: str, caches: list[Any], tokens: list[int]) -> int:
        """Keep these caches under that name, on every rank; → how many of the tokens are kept, all or 0."""
        if not self._index.holds(len(tokens)):
            return 0  # not even for a moment: the copy can be as large as all that runs
        with mx.stream(self._stream):
            self._kept.put(entry, caches)
        if self._rank != 0:
            return len(tokens)
        kept, gone = self._index.add(entry, tokens, self.can_trim(caches))
        if gone:
            self._context.ask({"evict": gone})
        return len(tokens) if kept else 0

    # --------------------------------------------------------------------------------- life's ends

    def warm_up(self) -> float | None:
        caches = self._caches.make()
        with mx.stream(self._stream):
            start = time.perf_counter()
            self._loaded.model(mx.zeros((1, WARM_UP_CHUNK), mx.uint32), cache=caches)
            mx.eval([cache.state for cache in caches])
            took = time.perf_counter() - start
            mx.eval(self._loaded.model(mx.zeros((1, 1), mx.uint32), cache=caches))
        return took

    def close(self) -> None:
        self._generator.close()
