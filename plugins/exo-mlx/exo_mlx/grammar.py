"""From a format (JSON schema, regex, grammar) to a compiled grammar, with llguidance. Cached by content.

The formats are those of `Request.format`: {"type": "json_object"}, {"type": "json_schema", "schema": …},
{"type": "regex", "pattern": …}, {"type": "grammar", "syntax": "lark" | "gbnf", "grammar": …}. Knows the
tokenizer; knows no requests in flight and touches no MLX array.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np
from exocli import BadRequest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark
from llguidance.hf import from_tokenizer

KEPT = 64
"""Compiled grammars; one holds from kilobytes to a few megabytes."""
WITHIN_S = 5.0
"""For one that somebody waits for. The limits below end most of what goes on for ever, but not all of it
(measured: an integer of "multipleOf": 999983 takes 6 to 13 s, anything of use well under one)."""
AT_ONCE = 2
"""Of them, so that one that takes long holds up neither the others nor, on most machines, the model."""
SYNTAXES = ("lark", "gbnf")

# One line with at most one space after a comma or colon: a small model that may write white space where
# the grammar has a free choice of it goes on with it for ever.
JSON_OPTIONS: Any = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
MOST_DIGITS = 20
"""In a row, in a number: what every 64-bit integer fits in."""
# Its bounds on time and memory, wide enough for an object of 5,000 optional properties (10 ms a mask; with
# its own the reply fails at 500); its messages without the grammar and the text in them.
LIMITS = LLParserLimits(max_items_in_row=20_000, step_max_items=100_000, verbose_errors=False)


class Grammars:
    """Thread-safe. `name` is the model's, for messages. The first grammar costs some seconds more: the
    tokenizer's vocabulary as a trie, which all grammars share."""

    def __init__(self, tokenizer: Any, end_tokens: Iterable[int], name: str) -> None:
        self._tokenizer = tokenizer
        self._end = sorted(end_tokens)
        self._name = name
        self._trie: LLTokenizer | None = None
        self._making = threading.Lock()
        self._compiling = threading.Semaphore(AT_ONCE)
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()
        self._digits: Any = None
        """One bit a token: it is digits alone."""

    def warm(self) -> None:
        """Make the trie now: meanwhile no other thread of Python's runs (measured: 1 s for 50,000 tokens),
        and a rank of a ring would miss its heartbeats."""
        with suppress(Exception):  # what is wrong with it is told who asks for a format
            self._vocabulary()

    def start(self, format: Mapping[str, Any]) -> Future[LLMatcher]:
        """The compiled grammar, to copy before use; compiled on a thread of its own if it is not known
        yet. The future raises BadRequest naming what is wrong; this does for a format too deep to read."""
        try:
            key = json.dumps(format)  # not sorted: the order of a schema's properties is the reply's
        except RecursionError as error:
            raise _refused("format cannot be used: it is nested too deeply.") from error
        with self._lock:
            known = self._compiled.get(key)
            if known is not None:
                self._compiled.move_to_end(key)
                return known
            future = self._compiled[key] = Future()
            if len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        threading.Thread(target=self._fill, args=(future, format), name="exo-grammar", daemon=True).start()
        return future

    def compile(self, format: Mapping[str, Any]) -> LLMatcher:
        """As `start`, waiting, but not for ever. Raises BadRequest."""
        self.warm()
        try:
            return self.start(format).result(WITHIN_S)
        except TimeoutError as error:
            text = f"format cannot be used: to compile it takes more than {WITHIN_S:g} seconds."
            raise _refused(text) from error

    def tokens(self, text: str) -> list[int]:
        """The text in this vocabulary, for a matcher that has to go on after it."""
        return self._vocabulary().tokenize_str(text)

    def is_special(self, token: int) -> bool:
        """Is it a token that no text contains?"""
        return self._vocabulary().is_special_token(token)

    def end_number(self, answer: Sequence[int], mask: bytes) -> bytes:
        """`mask` without the digits, where `answer` ends in a JSON number of MOST_DIGITS of them: JSON has
        no bound there, and small models go on for ever (measured with {"type": "number"})."""
        trie = self._vocabulary()
        tail = trie.decode_bytes(list(answer[-MOST_DIGITS:]))[-MOST_DIGITS:]
        if len(tail) < MOST_DIGITS or not tail.isdigit():
            return mask
        if self._digits is None:
            found = [trie.decode_bytes([token]).isdigit() for token in range(trie.vocab_size)]
            self._digits = np.packbits(found, bitorder="little")
        allowed = np.frombuffer(mask, np.uint8)
        (quote,) = trie.tokenize_str('"')
        if allowed[quote // 8] >> quote % 8 & 1:
            return mask  # it is in a string
        rest = allowed.copy()
        rest[: len(self._digits)] &= ~self._digits
        return rest.tobytes() if rest.any() else mask

    def _fill(self, future: Future[LLMatcher], format: Mapping[str, Any]) -> None:
        try:
            with self._compiling:
                future.set_result(self._compile(format))
        except BaseException as error:  # it is raised where the result is asked for
            future.set_exception(error)

    def _compile(self, format: Mapping[str, Any]) -> LLMatcher:
        if not self._end:
            raise _refused(f"{self._name} has no end token, so a reply in a format could not end.")
        try:
            text = translate(format)
            matcher = LLMatcher(self._vocabulary(), text, log_level=0, limits=LIMITS)
            matcher.compute_bitmask()  # finds what no text can match, and warms what copies share
        except BadRequest:
            raise
        except Exception as error:  # the converters raise nearly anything for what they do not take
            raise _refused(f"format cannot be used: {_line(str(error))}") from error
        if matcher.is_error() and "NoExtension" in matcher.get_error():
            raise _refused("format cannot be used: no text matches it.")
        if matcher.is_error():
            raise _refused(f"format cannot be used: {_line(matcher.get_error())}")
        return matcher

    def _vocabulary(self) -> LLTokenizer:
        with self._making:
            if self._trie is None:
                self._trie = from_tokenizer(self._tokenizer._tokenizer, eos_token=self._end)
            return self._trie


def translate(format: Mapping[str, Any]) -> str:
    """llguidance's text for a format. Raises BadRequest, and what llguidance raises."""
    match format.get("type"):
        case "json_object":
            return LLMatcher.grammar_from_json_schema({"type": "object"}, defaults=JSON_OPTIONS)
        case "json_schema":
            schema = format.get("schema")
            if schema is True:
                schema = {}
            if schema is False:
                raise _refused("format cannot be used: the schema false allows nothing.")
            if not isinstance(schema, Mapping):
                raise _refused("format needs a schema that is a JSON object.")
            return LLMatcher.grammar_from_json_schema(dict(schema), defaults=JSON_OPTIONS)
        case "regex":
            return LLMatcher.grammar_from_regex(_text(format, "pattern"))
        case "grammar":
            syntax, grammar = format.get("syntax", "lark"), _text(format, "grammar")
            if syntax not in SYNTAXES:
                raise _refused(f"format.syntax must be one of {', '.join(SYNTAXES)}, not {syntax}.")
            return LLMatcher.grammar_from_lark(any_to_lark(grammar) if syntax == "gbnf" else grammar)
        case other:
            raise _refused(f"format.type must be json_object, json_schema, regex or grammar, not {other}.")


def _text(format: Mapping[str, Any], name: str) -> str:
    value = format.get(name)
    if not isinstance(value, str) or not value:
        raise _refused(f"format needs a {name}.")
    return value


def _refused(text: str) -> BadRequest:
    return BadRequest(text, field="format")


def _line(text: str) -> str:
    """The library's words on one line, without its listing of the grammar."""
    words = " ".join(text.split("<state>")[0].split("\n   1 |")[0].split())
    return (words[:300] or "no reason given").rstrip(".") + "."
