"""Fifty JSON schemas of the kinds that clients send, each small enough for a short reply."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def obj(**properties: Any) -> Schema:
    """An object with these properties, all of them required; `True` stands for a short text."""
    found = {name: SHORT if value is True else value for name, value in properties.items()}
    return {
        "type": "object",
        "properties": found,
        "required": list(found),
        "additionalProperties": False,
    }


def array(items: Any, most: int = 3, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def number(kind: str = "integer", **bounds: float) -> Schema:
    return {"type": kind, **bounds}


def text(**rules: Any) -> Schema:
    return {"type": "string", "maxLength": 12, **rules}


SHORT = text()
AGE = number(minimum=0, maximum=120)
BOOL: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
COLOUR: Schema = {"enum": ["red", "green", "blue"]}
NODE: Schema = {
    "type": "object",
    "properties": {"value": AGE, "next": {"anyOf": [NULL, {"$ref": "#/$defs/node"}]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}

SCHEMAS: list[Schema] = [
    # scalars
    SHORT,
    AGE,
    BOOL,
    NULL,
    COLOUR,
    {"const": "yes"},
    {"enum": [1, "one", None, True]},
    number("number", minimum=-1, maximum=1),
    number(minimum=10, maximum=99, multipleOf=5),
    number(exclusiveMinimum=0, exclusiveMaximum=10),
    text(minLength=3),
    text(pattern="^[A-Z][a-z]{2,8}$"),
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    # arrays
    array(AGE),
    array(SHORT, least=2),
    array(COLOUR, most=2, least=2),
    array(array(number(minimum=0, maximum=9), most=2), most=2),
    {"type": "array", "prefixItems": [SHORT, AGE, BOOL], "items": False, "minItems": 3},
    array({"anyOf": [AGE, SHORT]}),
    array(obj(x=AGE, y=AGE), most=2),
    {"type": "array", "maxItems": 0},
    # objects
    obj(name=True),
    obj(name=True, age=AGE),
    obj(name=True, age=AGE, alive=BOOL),
    obj(colour=COLOUR, shade=number("number", minimum=0, maximum=1)),
    obj(first=True, last=True, middle={"type": ["string", "null"], "maxLength": 12}),
    obj(point=obj(x=number(minimum=0, maximum=9), y=number(minimum=0, maximum=9))),
    obj(a=obj(b=obj(c=obj(d=AGE)))),
    obj(tags=array(SHORT)),
    obj(rows=array(obj(id=AGE, name=True), most=2)),
    obj(result={"anyOf": [obj(error=True), obj(value=AGE)]}),
    obj(when={"type": "string", "format": "date"}, at={"type": "string", "format": "time"}),
    obj(mail={"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}\\.com$"}),
    obj(code=text(pattern="^[A-Z]{3}-[0-9]{4}$")),
    {
        "type": "object",
        "properties": {"a": AGE, "b": SHORT},
        "required": ["a"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"a": AGE},
        "required": ["a"],
        "additionalProperties": BOOL,
        "maxProperties": 3,
    },
    {
        "type": "object",
        "patternProperties": {"^k[0-9]$": AGE},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    {"type": "object", "additionalProperties": AGE, "maxProperties": 2},
    {"type": "object", "properties": {}, "additionalProperties": False},
    # combinations
    {"anyOf": [obj(kind={"const": "cat"}, lives=AGE), obj(kind={"const": "dog"}, name=True)]},
    {"oneOf": [obj(kind={"const": "a"}), obj(kind={"const": "b"})]},
    {"allOf": [{"type": "object", "properties": {"a": AGE}, "required": ["a"]}, obj(a=AGE, b=True)]},
    {"$defs": {"p": obj(x=AGE)}, **obj(left={"$ref": "#/$defs/p"}, right={"$ref": "#/$defs/p"})},
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    # what real programs ask for
    obj(
        sentiment={"enum": ["positive", "neutral", "negative"]}, score=number("number", minimum=0, maximum=1)
    ),
    obj(name={"const": "get_weather"}, arguments=obj(city=True, unit={"enum": ["C", "F"]})),
    obj(title=True, year=number(minimum=1900, maximum=2030), genres=array(COLOUR, most=2)),
    obj(steps=array(obj(n=AGE, do=True), most=2, least=1), done=BOOL),
]
assert len(SCHEMAS) == 50
