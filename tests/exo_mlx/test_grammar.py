"""Formats: what they accept, what is refused before anything runs, what is compiled once."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exocli import BadRequest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from exo_mlx import grammar
from exo_mlx.grammar import Grammars
from exo_mlx.loader import load_tokenizer
from tests.exo_mlx import tiny

END = 2


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    folder = tiny.write_folder(tmp_path_factory.mktemp("tiny") / "model")
    return Grammars(load_tokenizer(folder), [END], "tiny")


def accepts(grammars: Grammars, format: dict[str, Any], text: str) -> bool:
    """Is `text` a whole reply in this format?"""
    matcher = grammars.compile(format).deep_copy()
    tokens = grammars.tokens(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def schema(**of: Any) -> dict[str, Any]:
    return {"type": "json_schema", "schema": of}


PERSON = schema(
    type="object",
    properties={"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    required=["name", "age"],
    additionalProperties=False,
)


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        (PERSON, '{"name": "Ada", "age": 36}', '{"age": 36, "name": "Ada"}'),
        (PERSON, '{"name":"é\\n","age":0}', '{"name": "Ada", "age": -1}'),
        ({"type": "json_object"}, '{"a": [1, {"b": null}], "c": 1e3}', "[1]"),
        (schema(type="array", items={"enum": ["x", 1]}), '["x", 1]', '["y"]'),
        ({"type": "json_schema", "schema": True}, '"anything"', "nothing"),
        ({"type": "regex", "pattern": "(yes|no)!?"}, "no!", "no?"),
        ({"type": "regex", "pattern": "^[a-c]{2}$"}, "ab", "abc"),
        ({"type": "grammar", "grammar": 'start: "a" "b"*'}, "abb", "ba"),
        ({"type": "grammar", "syntax": "gbnf", "grammar": 'root ::= "a" [0-9]+'}, "a12", "a"),
        ({"type": "grammar", "syntax": "lark", "grammar": 'start: "x" %json {"type": "null"}'}, "xnull", "x"),
    ],
)
def test_formats(grammars: Grammars, format: dict[str, Any], good: str, bad: str) -> None:
    assert accepts(grammars, format, good)
    assert not accepts(grammars, format, bad)


@pytest.mark.parametrize("text", ['{"name": "a",\n"age": 1}', '{ "name": "a", "age": 1}', '{"name":  "a"}'])
def test_white_space_cannot_go_on_for_ever(grammars: Grammars, text: str) -> None:
    """At most one space after a comma and a colon, and nowhere else."""
    assert not accepts(grammars, PERSON, text)


@pytest.mark.parametrize(
    ("format", "words"),
    [
        ({"type": "xml"}, "must be json_object, json_schema, regex or grammar, not xml"),
        ({}, "not None"),
        ({"type": "json_schema"}, "needs a schema"),
        ({"type": "json_schema", "schema": [1]}, "needs a schema"),
        ({"type": "json_schema", "schema": False}, "allows nothing"),
        (schema(type="strin"), "Invalid type: strin"),
        (schema(type="array", uniqueItems=True), "uniqueItems"),
        ({"type": "json_schema", "schema": {"not": {"type": "string"}}}, '"not"'),
        ({"type": "json_schema", "schema": {"$ref": "https://example.com/schema"}}, "does not fetch"),
        ({"type": "json_schema", "schema": {"$ref": "#/$defs/absent"}}, "does not exist"),
        ({"type": "json_schema", "schema": {"$ref": "#"}}, "no text matches"),
        (schema(type="integer", minimum=5, maximum=3), "Unsatisfiable"),
        (schema(type="string", pattern="(?=a)b"), "look-around"),
        (schema(type="object", properties=3), "must be an object"),
        ({"type": "regex"}, "needs a pattern"),
        ({"type": "regex", "pattern": 3}, "needs a pattern"),
        ({"type": "regex", "pattern": "[a-"}, "unclosed character class"),
        ({"type": "regex", "pattern": r"[^\s\S]"}, "no text matches"),
        ({"type": "grammar", "grammar": ""}, "needs a grammar"),
        ({"type": "grammar", "grammar": "start: absent"}, "absent"),
        ({"type": "grammar", "syntax": "gbnf", "grammar": 'root ::= "a'}, "end of input"),
        ({"type": "grammar", "syntax": "gbnf", "grammar": "("}, "Expected"),
        ({"type": "grammar", "syntax": "yacc", "grammar": "a"}, "lark, gbnf"),
    ],
)
def test_what_is_refused_says_why_in_one_line(grammars: Grammars, format: dict[str, Any], words: str) -> None:
    for _ in range(2):  # what is known to be wrong stays wrong
        with pytest.raises(BadRequest) as caught:
            grammars.compile(format)
        assert words in caught.value.message
        assert "format" in caught.value.message
        assert "\n" not in caught.value.message and len(caught.value.message) < 400
        assert caught.value.details["field"] == "format"


@pytest.mark.parametrize(("depth", "words"), [(300, "recursion"), (5000, "nested too deeply")])
def test_nesting_without_end_is_refused(grammars: Grammars, depth: int, words: str) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(BadRequest, match=words):
        grammars.compile({"type": "json_schema", "schema": deep})


def test_what_takes_too_long_is_refused_and_holds_nobody_up(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling it takes some tenths of a second, which are given to nobody."""
    hostile = schema(type="integer", multipleOf=30011)
    monkeypatch.setattr(grammar, "WITHIN_S", 0.001)
    with pytest.raises(BadRequest, match=r"more than 0\.001 seconds"):
        grammars.compile(hostile)
    monkeypatch.undo()
    behind = grammars.start(hostile)
    assert accepts(grammars, {"type": "regex", "pattern": "beside|it"}, "beside")
    assert not behind.done()
    assert behind.result().deep_copy().try_consume_tokens(grammars.tokens("30011")) == 5


def test_an_object_of_a_thousand_properties_can_be_followed(grammars: Grammars) -> None:
    """Each of them may come next: a row of the parser has some items for every one."""
    many = schema(type="object", properties={f"p{i}": {"type": "null"} for i in range(1000)})
    assert accepts(grammars, many, '{"p0": null, "p500": null, "p999": null}')


def test_a_model_without_end_tokens_is_refused(grammars: Grammars) -> None:
    with pytest.raises(BadRequest, match="no end token"):
        Grammars(grammars._tokenizer, [], "endless").compile({"type": "json_object"})


def test_a_recursive_schema(grammars: Grammars) -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}
    node |= {"required": ["next"], "additionalProperties": False}
    format = {"type": "json_schema", "schema": {"$ref": "#/$defs/n", "$defs": {"n": node}}}
    assert accepts(grammars, format, '{"next": {"next": {"next": null}}}')


def test_the_same_content_is_compiled_once_whoever_asks(grammars: Grammars) -> None:
    format = schema(type="object", properties={f"k{i}": {"type": "string"} for i in range(50)})
    found: list[LLMatcher] = []
    threads = [
        threading.Thread(target=lambda: found.append(grammars.compile(json.loads(json.dumps(format)))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(matcher) for matcher in found}) == 1
    turned = {"type": "json_schema", "schema": {**format["schema"]}}
    turned["schema"]["properties"] = dict(reversed(format["schema"]["properties"].items()))
    assert grammars.compile(turned) is not found[0]  # the order of properties is the reply's


words = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=8)  # DEL is to be escaped
scalars = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | words
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


def schema_of(value: Any) -> dict[str, Any]:
    """A schema for this value and others like it."""
    match value:
        case None:
            return {"type": "null"}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array", "prefixItems": [schema_of(v) for v in value], "items": False}
    properties = {key: schema_of(v) for key, v in value.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=values)
def test_whatever_a_schema_describes_can_be_written(grammars: Grammars, value: Any) -> None:
    described = schema_of(value)
    Draft202012Validator(described).validate(value)
    format = {"type": "json_schema", "schema": described}
    assert accepts(grammars, format, json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))
    assert accepts(grammars, format, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


@pytest.mark.parametrize(
    ("said", "digits"),
    [
        ("0." + "1" * 19, True),
        ("0." + "1" * 20, False),
        ("-" + "9" * 19, True),
        ("-" + "9" * 20, False),
        ('"' + "9" * 30, True),
        ("[1e" + "9" * 20, False),
        ('{"n": ' + "9" * 20, False),
    ],
)
def test_a_number_ends(grammars: Grammars, said: str, digits: bool) -> None:
    """Where digits could go on for ever; in a text they may."""
    tokens = grammars.tokens(said)
    matcher = grammars.compile({"type": "json_schema", "schema": True}).deep_copy()
    assert matcher.consume_tokens(tokens)
    mask = np.frombuffer(grammars.end_number(tokens, matcher.compute_bitmask()), np.uint8)
    bits = np.unpackbits(mask, bitorder="little")
    (seven,) = grammars.tokens("7")
    assert bool(bits[seven]) == digits
    assert bits.any()


def test_a_tokenizer_from_a_real_model(smollm2: Path) -> None:
    grammars = Grammars(load_tokenizer(smollm2), [END], "smollm2")
    assert accepts(grammars, PERSON, '{"name": "日本語 👩‍👩‍👧", "age": 3}')
    assert grammars.is_special(END)
    assert not grammars.is_special(grammars.tokens("a")[0])
