"""mlx-lm's BatchGenerator on several ranks: after each step the sampled tokens are shared.

Knows the generator and how ranks exchange numbers; knows no requests.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from exo_ring.agreement import Agreement, Carrier


def quiet_sampler(logits: mx.array) -> mx.array:
    """For the ranks that do not sample: the right number of tokens, replaced before anyone reads them."""
    return mx.zeros(logits.shape[:1], dtype=mx.uint32)


class RingGenerator(BatchGenerator):  # type: ignore[misc]
    """`carrier` and `agreement` belong to this rank. Every rank makes the same calls in the same order.

    BatchGenerator computes one token ahead: when `next` returns, the tokens that the next call will
    report are already sampled, on one rank. One message for the whole batch makes them everybody's,
    whatever samplers the sequences have; nobody waits for it here.

    Where a step has both tokens and a chunk of a prompt, the chunk comes last (mlx-lm's order). The last
    stage sends the tokens before it works on the chunk, the others take them after theirs: so the first
    stage goes on with the next step while the last one still has the chunk.

    With each token travels a mark: the sequence's logits processors, which only the sampling rank has,
    failed (their `failed` is true). `failed` holds the sequences whose token that `next` has just reported
    is so marked, the same on every rank.
    """

    def __init__(self, model: Any, *, carrier: Carrier, agreement: Agreement, **settings: Any) -> None:
        super().__init__(model, **settings)
        self._carrier = carrier
        self._agreement = agreement
        self._shared = False
        self._marks: tuple[list[int], Any] = [], mx.zeros(0)
        self.failed: frozenset[int] = frozenset()
        self._prompt_chunk = self._prompt_batch.prompt
        if carrier.sends_tokens:
            self._prompt_batch.prompt = self._share_then_prompt

    def next(self) -> tuple[list[Any], list[Any]]:
        self._shared = False
        uids, marks = self._marks  # of the tokens that are reported now
        prompts, generated = super().next()
        with mx.stream(self.stream):
            self._share()
            self.failed = frozenset(uid for uid, mark in zip(uids, marks.tolist(), strict=True) if mark)
        self._agreement.record(
            [*((p.uid, *p.progress) for p in prompts), *((g.uid, g.token) for g in generated)]
        )
        return prompts, generated

    def _share(self) -> None:
        batch = self._generation_batch
        if not self._shared and len(batch):
            failed = [any(one.failed for one in processors) for processors in batch.logits_processors]
            drawn = mx.stack([batch._next_tokens.astype(mx.uint32), mx.array(failed, dtype=mx.uint32)])
            batch._next_tokens, marks = self._carrier.share_tokens(drawn)
            self._marks = list(batch.uids), marks
        self._shared = True

    def _share_then_prompt(self, tokens: list[list[int]]) -> None:
        self._share()
        self._prompt_chunk(tokens)
