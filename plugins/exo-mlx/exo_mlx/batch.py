"""mlx-lm's BatchGenerator with the order of its passes chosen for a person who waits: tokens that are drawn
are handed on, and where prompts and replies share the machine they take turns.

Knows the generator; knows no requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch

LONGEST_END = 32
"""Tokens of prompts' ends in one pass, over all rows. The pass makes logits for each of them, which for more
costs what the saved pass does (measured: 1 to 5 ms a token where a pass takes 85 to 170)."""
CLEARED = 512
"""Passes after which MLX gives back the buffers that KV caches have outgrown."""


class Batch(GenerationBatch):  # type: ignore[misc]
    """`eager`: a token is handed on by the call whose pass drew it.

    mlx-lm holds each token back for a call, so that a GPU computes the next pass meanwhile. On the CPU
    device a call waits for its pass all the same (measured: 90 ms for the call that begins a reply and hands
    nothing on): there a token held back is a pass late, and each reply's last pass is for nothing.

    Between calls `tokens` is what the KV holds, `_next_tokens` the pending token, drawn and not yet in it;
    it is handed on already exactly if the batch is eager.
    """

    eager = False
    resting = False
    """Makes no pass for now."""
    _next_tokens: mx.array
    _next_logprobs: list[mx.array]

    def next(self) -> list[Any]:
        if self.resting or not self.uids:
            return []
        if not self.eager:
            return super().next()  # type: ignore[no-any-return]
        self._step()
        return self.hand_on(range(len(self.uids)))

    def begin(self) -> list[Any]:
        """The first tokens of the sequences that have joined, as far as they are due."""
        return self.hand_on([row for row, n in enumerate(self._num_tokens) if n == 0]) if self.eager else []

    def hand_on(self, rows: Iterable[int]) -> list[Any]:
        """Hand on the pending tokens of these rows; those that end their sequence take it out."""
        responses = []
        ended = set()
        drawn: Any = self._next_tokens.tolist() if self.uids else []
        for row in rows:
            reason = self._reason(row, drawn[row])
            responses.append(self._response(row, drawn[row], self._next_logprobs[row], reason))
            if reason is not None:
                ended.add(row)
        if ended:
            self.filter([row for row in range(len(self.uids)) if row not in ended])
        return responses

    def _reason(self, row: int, token: int) -> str | None:
        """Counts a token that is handed on; → why it is the last one, if it is."""
        self._num_tokens[row] += 1
        reason = "length" if self._num_tokens[row] >= self.max_tokens[row] else None
        return "stop" if self._matchers[row].advance(token) else reason

    def _response(self, row: int, token: int, logprobs: mx.array, reason: str | None) -> Any:
        ended = reason is not None
        return self.Response(
            uid=self.uids[row],
            token=token,
            logprobs=logprobs,
            finish_reason=reason,
            prompt_cache=self.extract_cache(row) if ended else None,
            all_tokens=self.tokens[row] if ended else None,
        )


class Generator(BatchGenerator):  # type: ignore[misc]
    """A `next` reads a chunk of the prompts or makes a pass for the replies, in turns where there are both:
    a step then takes the longer of the two and not their sum, and a cancel waits no longer than that.

    mlx-lm reads a prompt's last token in a pass of its own. If `joined`, the end of a prompt and that token
    are one pass; for models whose prompts may be divided anywhere.
    """

    _currently_processing: list[Any]

    def __init__(
        self, model: Any, *, eager: bool, joined: bool, batch: type[Batch] = Batch, **settings: Any
    ) -> None:
        super().__init__(model, **settings)
        self._generation_batch = batch.empty(model, self.sampler)
        self._generation_batch.eager = eager
        self._joined = joined
        self._read = False
        """Was the last step a chunk of prompts?"""
        self._passes = 0

    def next(self) -> tuple[list[Any], list[Any]]:
        with mx.stream(self._stream):
            replies: Batch = self._generation_batch
            prompts = self._currently_processing or self._unprocessed_sequences
            reads = bool(prompts) and len(replies) < self.completion_batch_size
            if len(replies) and (self._read or not reads):
                self._read = False
                return [], self._pass(replies)
            self._read = True
            if self._joined and (ended := self._read_ends()):
                return ended, replies.begin()
            replies.resting = True
            read, _ = self._next()
            replies.resting = False
            return read, replies.begin()

    def _pass(self, replies: Batch) -> list[Any]:
        self._passes += 1
        if self._passes % CLEARED == 0:
            mx.clear_cache()
        return replies.next()

    def _read_ends(self) -> list[Any]:
        """Read what is left of the prompts that are nearly read, and begin their replies."""
        admitted = min(
            self.prefill_batch_size - len(self._prompt_batch),
            self.completion_batch_size - len(self._generation_batch),
            len(self._unprocessed_sequences),
        )
        if admitted > 0:
            self._prompt_batch.extend(self._make_batch(admitted))
        ends: dict[int, list[int]] = {}
        widest = 0
        for row, (segments, _, _) in enumerate(self._currently_processing):
            length = sum(map(len, segments))
            width = max(widest, length)
            if 1 < length <= self.prefill_step_size and width * (len(ends) + 1) <= LONGEST_END:
                ends[row], widest = [token for segment in segments for token in segment], width
        if not ends:
            return []
        totals = [self._currently_processing[row][2] for row in ends]
        rows = range(len(self._prompt_batch))
        batch = self._prompt_batch.split(list(ends))
        self._currently_processing = [self._currently_processing[row] for row in rows if row not in ends]
        batch.model = _Ends(self.model, list(ends.values()))
        for tokens, rest in zip(batch.tokens, ends.values(), strict=True):
            tokens += rest[:-1]
        begun = batch.generate([rest[-1:] for rest in ends.values()])
        self._generation_batch.extend(begun)
        done = zip(begun.uids, totals, strict=True)
        return [PromptProcessingBatch.Response(uid, (total, total), True, True) for uid, total in done]


class _Ends:
    """The model for one call of mlx-lm's, which gives it the last token of each prompt: reads all that is
    left of each, `ends`, and answers with the logits after the last one."""

    def __init__(self, model: Any, ends: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._ends = ends

    def __call__(self, last: mx.array, cache: list[Any]) -> mx.array:
        """`last` (rows, 1) → logits (rows, 1, vocabulary)."""
        lengths = [len(end) for end in self._ends]
        width = max(lengths)
        padding = [width - length for length in lengths]
        if any(padding):
            for one in cache:
                one.prepare(lengths=lengths, right_padding=padding)
        given = [[*end, *[0] * pad] for end, pad in zip(self._ends, padding, strict=True)]
        logits: mx.array = self._model(mx.array(given), cache=cache)
        if any(padding):
            for one in cache:
                one.finalize()
        return logits[mx.arange(len(lengths)), mx.array(lengths) - 1][:, None]
