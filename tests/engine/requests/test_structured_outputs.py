"""What structured_outputs may be given: each kind becomes a grammar, and what is wrong is named."""

import json

import pytest

from minllm.engine.requests.structured_outputs import LONGEST, LONGEST_EXPRESSION, StructuredOutputsParams
from minllm.errors import InvalidRequestError

WRONG = {
    "nothing": (dict(), "gives nothing"),
    "two": (dict(regex="a", choice=["b"]), "regex and choice"),
    "json_object=False alone": (dict(json_object=False), "gives nothing"),
    "no flag": (dict(json_object=1), "json_object=1"),
    "an empty regex": (dict(regex=""), "regex=''"),
    "a number": (dict(regex=5), "regex=5"),
    "a lone surrogate": (dict(grammar="\ud800"), "valid Unicode"),
    "a long regex": (dict(regex="a" * (LONGEST_EXPRESSION + 1)), f"regex has {LONGEST_EXPRESSION + 1} characters"),
    "a long schema": (dict(json={"enum": ["a" * 9] * 12_000}), f"at most {LONGEST} are allowed"),
    "a long pattern": (dict(json={"pattern": "\\" * 9_000}), "json has a string of 18000 characters"),
    "a long line": (dict(grammar="start: A\nA: /" + "a" * LONGEST_EXPRESSION), "grammar has a line"),
    "many choices": (dict(choice=["a" * 9] * 12_000 + ["b" * LONGEST]), "characters"),
    "no choice": (dict(choice=[]), "choice=[]"),
    "a choice that is a text": (dict(choice="yes"), "choice='yes'"),
    "a choice that is a number": (dict(choice=["yes", 1]), "choice="),
    "JSON that is no object": (dict(json="[1]"), "the text of a JSON object"),
    "text that is no JSON": (dict(json="{"), "the text of a JSON object"),
    "a schema that is no JSON": (dict(json={"enum": [object()]}), "JSON schema"),
    "NaN": (dict(json={"enum": [float("nan")]}), "JSON schema"),
    "white space of a regex": (dict(regex="a", disable_any_whitespace=True), "disable_any_whitespace is for JSON"),
    "white space that is none": (dict(json_object=True, disable_any_whitespace=True, whitespace_pattern=" ?"), "exclude each other"),
}


@pytest.mark.parametrize("fields,message", WRONG.values(), ids=WRONG)
def test_wrong_descriptions_are_named(fields, message):
    with pytest.raises(InvalidRequestError) as error:
        StructuredOutputsParams(**fields)
    assert message in str(error.value)


def test_a_schema_that_holds_itself_is_refused():
    schema = {}
    schema["items"] = schema
    with pytest.raises(InvalidRequestError, match="JSON schema"):
        StructuredOutputsParams(json=schema)


def test_each_kind_becomes_a_grammar():
    pytest.importorskip("llguidance")
    schema = StructuredOutputsParams(json={"type": "integer"})
    assert schema.kind == "json" and schema == StructuredOutputsParams(json=json.dumps({"type": "integer"}))
    assert schema.as_lark().endswith('start: %json {"type": "integer"}')
    assert StructuredOutputsParams(json_object=True).as_lark().endswith('start: %json {"type": "object"}')
    assert StructuredOutputsParams(regex="a/b").as_lark().endswith("start: /a\\/b/")
    assert StructuredOutputsParams(choice=["a", "b", "a"]).choice == ("a", "b")
    assert '"b"' in StructuredOutputsParams(grammar='root ::= "a" | "b"').as_lark()
    with pytest.raises(InvalidRequestError, match="as GBNF"):
        StructuredOutputsParams(grammar="root ::= (").as_lark()
    spaces = StructuredOutputsParams(json={"x-guidance": {"lenient": True}}, whitespace_pattern=" ?").as_lark()
    assert '"whitespace_pattern": " ?"' in spaces
