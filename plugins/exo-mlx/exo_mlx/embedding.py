"""The step engine of an embedding model: batches of texts, several requests' together, cancel between them.

A step takes texts from the live requests in turn until a chunk of tokens is full: a request of thousands
of texts does not keep a short one waiting. Runs in a worker; knows nothing of processes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from exocli import (
    WARM_UP_CHUNK,
    BadRequest,
    CancelToken,
    ContextOverflow,
    Embedding,
    Event,
    Finished,
    OpenContext,
    Prepared,
    Progress,
    Receipt,
    Request,
    StepEngine,
    Usage,
    UsageError,
)

from exo_mlx import sentence
from exo_mlx.encoder import Encoder, Texts, shorten
from exo_mlx.options import LocalOptions
from exo_mlx.plugin import EMBEDDING_CAPABILITIES


@dataclass
class _Live:
    """`waiting`: (index, token ids) of the texts that have no vector yet, the longest first."""

    prepared: Prepared
    cancel: CancelToken
    waiting: deque[tuple[int, Sequence[int]]]
    processed: int = 0

    @property
    def id(self) -> str:
        return self.prepared.id

    @property
    def total(self) -> int:
        return self.prepared.prompt_tokens


class EmbeddingEngine(StepEngine):
    def __init__(self, context: OpenContext) -> None:
        """Raises ModelBroken, OutOfMemory; UsageError for an adapter, which goes over models that write."""
        options: LocalOptions = context.options
        path = Path(context.model)
        if options.adapter is not None:
            raise UsageError(f"{path.name} makes embeddings: no adapter goes over it.")
        self._context = context
        self._name = path.name
        self._fixed = options.chunk
        self._chunk = options.chunk or WARM_UP_CHUNK
        self._stream = mx.default_stream(mx.default_device())
        self._found = sentence.read(path)
        limit = min(n for n in (self._found.limit, options.context) if n)
        self._texts = Texts(path, self._found, limit)
        self._encoder = Encoder(
            path, self._found, cpu_dtype=options.cpu_dtype, force=options.force, progress=context.progress
        )
        self.capabilities = replace(EMBEDDING_CAPABILITIES, context=limit)
        self._live: dict[str, _Live] = {}
        self._events: list[Event] = []
        self._worked = 0

    def describe(self) -> Mapping[str, Any]:
        return {
            "dtype": self._encoder.dtype,
            "device": str(mx.default_device()),
            "context": self.capabilities.context,
            "dimensions": self._found.width,
            "pooling": self._found.pooling,
            "weight_bytes": self._encoder.nbytes,
            "notes": list(self._encoder.notes),
        }

    # ---------------------------------------------------------------------------- requests come in

    def prepare(self, request: Request) -> Prepared:
        """Raises BadRequest for a length that vectors cannot have; ContextOverflow with both counts for a
        text that is too long, unless the request lets it be cut."""
        dimensions = request.dimensions or self._found.width
        if not self._found.check_dimensions(dimensions):
            shorter = self._found.narrower
            also = "" if shorter == () else f" or {', '.join(map(str, shorter))}" if shorter else " or less"
            text = f"{self._name} makes vectors of {self._found.width} dimensions{also}, not {dimensions}."
            raise BadRequest(text, field="dimensions")
        try:
            texts = self._texts.encode(request.inputs, request.truncate)
        except (UnicodeEncodeError, TypeError) as error:  # half a surrogate pair, which JSON can carry
            raise BadRequest("A text is not Unicode.", field="input") from error
        for index, ids in enumerate(texts):
            if len(ids) > self._texts.limit:
                which = f"Text {index + 1} of {len(texts)}" if len(texts) > 1 else "The text"
                raise ContextOverflow(
                    f"{which} has {len(ids)} tokens; {self._name} takes "
                    f"{self._texts.limit}. Shorten it, or let it be cut (truncate).",
                    field="input",
                    prompt_tokens=len(ids),
                    context=self._texts.limit,
                )
        return Prepared(
            id=request.id,
            prompt_tokens=sum(map(len, texts)),
            max_tokens=0,
            tokens=tuple(token for ids in texts for token in ids),
            settings={"lengths": [len(ids) for ids in texts], "dimensions": dimensions},
        )

    def submit(self, prepared: Prepared, cancel: CancelToken) -> None:
        texts, at = [], 0
        for index, length in enumerate(prepared.settings["lengths"]):
            texts.append((index, prepared.tokens[at : at + length]))
            at += length
        # Texts of like length together: less padding.
        texts.sort(key=lambda text: -len(text[1]))
        live = self._live[prepared.id] = _Live(prepared, cancel, deque(texts))
        self._events.append(Progress(id=live.id, processed=0, total=live.total))

    def tune(self, chunk: int) -> None:
        if self._fixed is None:
            self._chunk = chunk

    # --------------------------------------------------------------------------------------- a step

    def step(self) -> Sequence[Event]:
        for live in [live for live in self._live.values() if live.cancel.cancelled]:
            self._leave(live)
        self._worked = 0
        batch = self._batch()
        if batch:
            with mx.stream(self._stream):
                vectors = self._encoder.vectors([ids for _, _, ids in batch])
            self._worked = len(batch) * max(len(ids) for _, _, ids in batch)
            for (live, index, ids), vector in zip(batch, vectors, strict=True):
                short = shorten(vector, live.prepared.settings["dimensions"], self._found.normalize)
                live.processed += len(ids)
                self._events.append(Embedding(id=live.id, index=index, vector=tuple(short.tolist())))
            for live in {live.id: live for live, _, _ in batch}.values():
                self._conclude(live)
        events, self._events = self._events, []
        return events

    def last_step(self) -> Mapping[str, Any]:
        return {"prefill_tokens": self._worked, "decoded": 0}

    def _batch(self) -> list[tuple[_Live, int, Sequence[int]]]:
        """(request, index, token ids) of texts whose tokens, padded to the longest, fit the chunk; one at
        least. The request that waited longest begins, then the others in turn."""
        batch: list[tuple[_Live, int, Sequence[int]]] = []
        longest = 0
        turns = deque(self._live.values())
        while turns:
            live = turns.popleft()
            wanted = max(longest, len(live.waiting[0][1]))
            if batch and wanted * (len(batch) + 1) > self._chunk:
                continue  # a shorter one of another request may still fit
            longest = wanted
            batch.append((live, *live.waiting.popleft()))
            if live.waiting:
                turns.append(live)
        for request_id in dict.fromkeys(live.id for live, _, _ in batch):
            self._live[request_id] = self._live.pop(request_id)  # they had their turn
        return batch

    def _conclude(self, live: _Live) -> None:
        self._events.append(Progress(id=live.id, processed=live.processed, total=live.total))
        if not live.waiting:
            del self._live[live.id]
            self._events.append(Finished(id=live.id, reason="stop", usage=Usage(prompt_tokens=live.total)))

    def _leave(self, live: _Live) -> None:
        """A cancelled request leaves: the vectors that are told are its caller's, nothing else is kept."""
        del self._live[live.id]
        receipt = Receipt(phase="prefill", processed=live.processed, total=live.total, kept_tokens=0)
        self._context.log(f"cancelled {live.id}: {receipt}")
        usage = Usage(prompt_tokens=live.total)
        self._events.append(Finished(id=live.id, reason="cancelled", usage=usage, cancel=receipt))

    # --------------------------------------------------------------------------------- life's ends

    def warm_up(self) -> float | None:
        ids = [0] * min(WARM_UP_CHUNK, self._texts.limit)
        with mx.stream(self._stream):
            self._encoder.vectors([ids])  # the first call also makes kernels and threads
            start = time.perf_counter()
            self._encoder.vectors([ids])
            return time.perf_counter() - start

    def close(self) -> None:
        return
