"""JSON schemas: forty by hand, one for each keyword that structured outputs follow, and random ones. Parameters of such outputs."""

from hypothesis import strategies as st

from minllm import SamplingParams
from minllm.engine.requests.structured_outputs import StructuredOutputsParams

STRING, SHORT = {"type": "string", "maxLength": 8}, {"type": "string", "minLength": 1, "maxLength": 3}
SMALL = {"type": "integer", "minimum": -9, "maximum": 99}


def _object(required=None, **properties):
    required = list(properties if required is None else required)
    return dict(type="object", properties=properties, required=required, additionalProperties=False)


SCHEMAS = {
    "a person": _object(
        name=STRING, age={"type": "integer", "minimum": 0, "maximum": 120}, email={"type": "string", "pattern": "^[a-z]{1,5}@x\\.org$"}
    ),
    "true or false": {"type": "boolean"},
    "null": {"type": "null"},
    "a short string": STRING,
    "a string of exactly five": {"type": "string", "minLength": 5, "maxLength": 5},
    "a pattern in the middle": {"type": "string", "pattern": "b", "maxLength": 6},
    "a pattern with classes": {"type": "string", "pattern": "^\\d{2}-[A-Z]+$", "maxLength": 9},
    "a date": {"type": "string", "format": "date"},
    "a time": {"type": "string", "format": "time"},
    "an IPv4 address": {"type": "string", "format": "ipv4"},
    "a UUID": {"type": "string", "format": "uuid"},
    "an integer in a range": SMALL,
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 1000},
    "negative integers": {"type": "integer", "minimum": -305, "maximum": -17},
    "a multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 500},
    "a number in a range": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "an enumeration of strings": {"enum": ["red", "green", "blue"]},
    "an enumeration of anything": {"enum": [1, "1", None, [1, {"a": False}], {"b": "é"}]},
    "a constant": {"const": {"answer": [42, "forty\n\"two\""]}},
    "several types": {"type": ["boolean", "null", "integer"], "minimum": 0, "maximum": 9},
    "an array of booleans": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
    "an array of exactly three": {"type": "array", "items": SMALL, "minItems": 3, "maxItems": 3},
    "a tuple": {"type": "array", "prefixItems": [SMALL, {"type": "boolean"}], "items": False, "minItems": 2},
    "a tuple with a tail": {"type": "array", "prefixItems": [SMALL], "items": {"type": "null"}, "minItems": 1, "maxItems": 4},
    "nested arrays": {"type": "array", "maxItems": 2, "items": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}}},
    "an empty object": _object(),
    "required and optional": _object(["b"], a={"type": "boolean"}, b={"type": "null"}, c=SMALL),
    "names that need escapes": _object(**{'a"b': {"type": "null"}, "c\\d": {"type": "boolean"}, "é": {"const": 1}}),
    "nested objects": _object(outer=_object(inner=_object(leaf={"type": "boolean"}))),
    "an object of booleans": {"type": "object", "additionalProperties": {"type": "boolean"}, "required": ["on"], "maxProperties": 3},
    "names by pattern": {"type": "object", "patternProperties": {"^n[0-9]$": SMALL}, "additionalProperties": False, "maxProperties": 2},
    "either of two": {"anyOf": [{"const": "a"}, SMALL]},
    "exactly one of two": {"oneOf": [_object(kind={"const": "a"}, x={"type": "null"}), _object(kind={"const": "b"}, y=SMALL)]},
    "all of two": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]},
    "a definition": {"$defs": {"flag": {"type": "boolean"}}, "type": "array", "items": {"$ref": "#/$defs/flag"}, "maxItems": 3},
    "a tree": {
        "$defs": {"node": _object(["leaf"], leaf={"type": "boolean"}, child={"$ref": "#/$defs/node"})}, "$ref": "#/$defs/node",
    },
    "an optional value": _object([], value={"anyOf": [{"type": "null"}, SHORT]}),
    "a list of people": {"type": "array", "minItems": 1, "maxItems": 2, "items": _object(name=SHORT, age=SMALL)},
    "a call of a tool": _object(name={"const": "weather"}, arguments=_object(["city"], city=SHORT, unit={"enum": ["C", "F"]})),
    "words in many scripts": {"enum": ["日本", "Ελλάδα", "😀", "naïve"]},
}  # fmt: skip


def random_schemas():
    """Schemas of the keywords above, with outputs of a few dozen characters."""
    numbers = st.tuples(st.integers(-200, 200), st.integers(0, 150)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
    )
    strings = st.tuples(st.integers(0, 3), st.integers(0, 4)).map(
        lambda pair: {"type": "string", "minLength": pair[0], "maxLength": pair[0] + pair[1]}
    )
    values = st.none() | st.booleans() | st.integers(-99, 99) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
    enums = st.lists(values, min_size=1, max_size=4).map(lambda found: {"enum": found})
    leaves = st.one_of(numbers, strings, enums, st.just({"type": "boolean"}))

    def deeper(schemas):
        names = st.text('ab"é\n ', min_size=1, max_size=3)
        objects = st.tuples(st.dictionaries(names, schemas, max_size=3), st.booleans()).map(
            lambda pair: _object(list(pair[0])[: None if pair[1] else 1], **pair[0])
        )
        arrays = st.tuples(schemas, st.integers(0, 2)).map(lambda pair: {"type": "array", "items": pair[0], "maxItems": pair[1]})
        return st.one_of(objects, arrays, st.lists(schemas, min_size=1, max_size=2).map(lambda found: {"anyOf": found}))

    return st.recursive(leaves, deeper, max_leaves=4)


def structured_params(**fields):
    """SamplingParams whose fields may also be those of StructuredOutputsParams."""
    mine = {name: fields.pop(name) for name in list(fields) if name in StructuredOutputsParams.__dataclass_fields__}
    return SamplingParams(structured_outputs=StructuredOutputsParams(**mine), **fields)
