"""Prompt lookup: guesses a text's next tokens from where its end has occurred before.

The method is "prompt lookup decoding" (Saxena 2023), the search that of LZ77 with hash chains. Knows token
ids alone: no model, no array, no request.
"""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST = 2
"""Tokens of the end that must have occurred before."""
LONGEST = 8
"""A longer match is not told from this one."""
CANDIDATES = 16
"""Earlier places that are compared, the latest first: so a guess costs the same in any text."""


class Lookup:
    """An index of one text, told in order, by `follow`. O(1) a token."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._latest: dict[tuple[int, int], int] = {}
        self._before: list[int] = []

    def follow(self, tokens: Sequence[int]) -> None:
        """The text so far; what was told before must be its beginning."""
        for place in range(len(self._tokens), len(tokens)):
            token = tokens[place]
            previous = self._tokens[-1] if self._tokens else -1
            self._tokens.append(token)
            self._before.append(self._latest.get((previous, token), -1))
            self._latest[previous, token] = place

    def repeats(self) -> bool:
        """Have the last two tokens occurred before? If not, nothing longer has."""
        return bool(self._before) and self._before[-1] >= 0

    def guess(self, pending: int, limit: int) -> list[int]:
        """What followed the text's end and the token `pending` where they occurred before: at most `limit`
        tokens, from the place that agrees longest, of several from the latest. [] = nowhere."""
        if not self._tokens:
            return []
        best, length = -1, SHORTEST - 1
        place = self._latest.get((self._tokens[-1], pending), -1)
        for _ in range(CANDIDATES):
            if place < 0 or length >= LONGEST:
                break
            if (agreed := self._agreement(place)) > length:
                best, length = place, agreed
            place = self._before[place]
        return self._copy(best, pending, limit) if best >= 0 else []

    def _agreement(self, place: int) -> int:
        """How many tokens up to `place` equal those up to the end and the pending one, which does."""
        tokens = self._tokens
        length = 1
        while length < min(LONGEST, place + 1) and tokens[place - length] == tokens[-length]:
            length += 1
        return length

    def _copy(self, place: int, pending: int, limit: int) -> list[int]:
        """What follows `place`; a place near the end repeats itself, as a loop does."""
        found: list[int] = []
        period = len(self._tokens) - place
        for step in range(1, limit + 1):
            at = place + step
            if at < len(self._tokens):
                found.append(self._tokens[at])
            elif at == len(self._tokens):
                found.append(pending)
            else:
                found.append(found[-period])
        return found
