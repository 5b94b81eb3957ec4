"""The form of a text: response_format, vLLM's fields, and calls of tools that are forced."""

import json
import re
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict

from minllm.server.tool_calls.formats import FORMATS
from minllm.server.tool_calls.grammar import moved, strict_grammar

MESSAGES = [{"role": "user", "content": "def add(a, b):"}]
SCHEMA = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "ok": {"type": "boolean"}}, "required": ["colour", "ok"]}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA | {"additionalProperties": False}}}
NODE = {"properties": {"leaf": {"enum": [1, 2]}}, "required": ["leaf"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "paint", "parameters": SCHEMA | {"additionalProperties": False}}},
    {"type": "function", "function": {"name": "walk", "parameters": {
        "type": "object", "properties": {"node": {"$ref": "#/$defs/node"}}, "required": ["node"], "additionalProperties": False,
        "$defs": {"node": {"type": "object", **NODE}},
    }}},
]  # fmt: skip
COMPACT = {"x-guidance": {"whitespace_flexible": False}}
ANSWERS = [f'{{"colour":"{colour}","ok":{ok}}}' for colour in ("red", "blue") for ok in ("true", "false")]
RANDOM = {"temperature": 1, "seed": 3, "max_tokens": 200}


def completed(http, **field):
    """The text of a completion."""
    return http.post("/v1/completions", json={"prompt": "x", **RANDOM, **field}).json()["choices"][0]["text"]


def chat(http, **body):
    return http.post("/v1/chat/completions", json={"messages": MESSAGES, **RANDOM, **body})


def is_right(text):
    found = json.loads(text)
    return set(found) == {"colour", "ok"} and found["colour"] in ("red", "blue") and isinstance(found["ok"], bool)


def is_begun(text):
    """True for a right answer, or the beginning of one: a model that may write spaces can write them to the end."""
    return any(answer.startswith("".join(text.split())) for answer in ANSWERS)


def test_a_schema_in_every_form(http):
    assert is_begun(chat(http, response_format=FORM).json()["choices"][0]["message"]["content"])
    schema = FORM["json_schema"]["schema"]

    assert is_begun(completed(http, guided_json=schema))
    assert is_right(completed(http, structured_outputs={"json": schema, "disable_any_whitespace": True}))
    text = {"format": {"type": "json_schema", "name": "answer", "schema": schema | COMPACT}}
    answer = http.post("/v1/responses", json={"input": "x", "max_output_tokens": 200, "text": text}).json()
    assert is_right(answer["output"][0]["content"][0]["text"]) and answer["text"] == text


def test_the_other_forms(http):
    assert re.fullmatch("[ab]{3}c", completed(http, guided_regex="[ab]{3}c"))
    assert completed(http, guided_choice=["yes", "no"]) in ("yes", "no")
    assert completed(http, structured_outputs={"grammar": 'start: "x" "y"'}) == "xy"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (dict(response_format={"type": "xml"}), "response_format"),
        (dict(response_format={"type": "json_schema"}), "response_format"),
        (dict(response_format=FORM, guided_regex="a"), None),
        (dict(structured_outputs={}), None),
        (dict(structured_outputs={"json": 1}), None),
        (dict(guided_regex="("), None),
        (dict(guided_json={"type": 1}), None),
        (dict(structural_tag={"a": 1}), "structural_tag"),
        (dict(tool_choice="required"), "tool_choice"),
        (dict(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "fly"}}), "tool_choice"),
        (dict(tools=TOOLS, tool_choice="required", response_format=FORM), "tool_choice"),
    ],
)
def test_a_wrong_form_is_refused(http, body, param):
    response = chat(http, **body)
    assert response.status_code == 400, response.text
    assert param is None or response.json()["error"]["param"] == param


def test_a_call_can_be_forced(http):
    named = {"type": "function", "function": {"name": "paint"}}
    message = chat(http, tools=TOOLS, tool_choice=named).json()["choices"][0]["message"]
    [call] = message["tool_calls"]
    assert call["function"]["name"] == "paint" and is_right(call["function"]["arguments"]) and message["content"] is None
    for seed in range(4):
        choice = chat(http, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed).json()["choices"][0]
        [call] = choice["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert call["function"]["name"] in ("paint", "walk") and choice["finish_reason"] == "tool_calls"
        assert arguments.get("node", {"leaf": 1})["leaf"] in (1, 2)
    tools = [{"name": "paint", "input_schema": TOOLS[0]["function"]["parameters"]}]
    body = {"messages": MESSAGES, "max_tokens": 200, "tools": tools, "tool_choice": {"type": "tool", "name": "paint"}}
    answer = http.post("/v1/messages", json=body).json()
    assert answer["content"][0]["name"] == "paint" and answer["content"][0]["input"]["colour"] in ("red", "blue")
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    answer = http.post("/v1/responses", json={"input": "x", "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}).json()
    assert answer["output"][0]["type"] == "function_call" and is_right(answer["output"][0]["arguments"])


STRICT = [{"type": "function", "function": tool["function"] | {"strict": tool["function"]["name"] == "paint"}} for tool in TOOLS]


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("a < b, <tool", True),
        ('Well.<tool_call>\n{"name": "paint", "arguments": {"colour": "red", "ok": true}}\n</tool_call> and then', True),
        ('<tool_call>\n{"name": "walk", "arguments": {"any": [1]}}\n</tool_call>' * 2, True),
        ('<tool_call>\n{"name": "paint", "arguments": {"colour": "green"', False),
        ('<tool_call>\n{"name": "paint", "arguments": {"colour": "red", "ok": true}}\n</tool_call><tool_call>\n{"name": "fly"', False),
        ("<tool_call>well", False),
    ],
)
def test_calls_of_strict_tools_have_their_arguments(text, is_allowed):
    llguidance = pytest.importorskip("llguidance", reason="structured output is not installed")
    grammar = strict_grammar(FORMATS["hermes"], [tool["function"] for tool in STRICT])
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar)
    assert (matcher.try_consume_tokens(list(text.encode())) == len(text)) is is_allowed and not matcher.get_error()


def test_references_of_a_schema_follow_it_and_data_stays():
    schema = {
        "properties": {"const": {"$ref": "#/$defs/a"}, "b": {"const": {"$ref": "#"}}},
        "items": [{"$ref": "#", "enum": [{"$ref": "#/x"}]}],
    }
    properties = {"const": {"$ref": "#/at/$defs/a"}, "b": {"const": {"$ref": "#"}}}
    assert moved(schema, "#/at") == {"properties": properties, "items": [{"$ref": "#/at", "enum": [{"$ref": "#/x"}]}]}


def test_strict_tools_are_free_to_be_called_or_not(served, http, monkeypatch):
    seen, submit = [], served.server.engine.client.submit
    monkeypatch.setattr(served.server.engine.client, "submit", lambda requests: seen.extend(requests) or submit(requests))
    monkeypatch.setattr(type(served.server), "tool_format", FORMATS["hermes"])
    for tools in (TOOLS, STRICT):
        choice = chat(http, tools=tools, max_tokens=20).json()["choices"][0]
        assert choice["finish_reason"] in ("length", "stop") and choice["message"]["content"]
    assert [one.params.structured_outputs is not None for one in seen] == [False, True]


class Answer(BaseModel):
    model_config = ConfigDict(json_schema_extra=COMPACT)

    colour: Literal["red", "blue"]
    ok: bool


def test_openai_parses_answers(served):
    module = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    with module.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0, timeout=30) as client:
        options = dict(model="bundled", messages=MESSAGES, response_format=Answer, **RANDOM)
        found = client.chat.completions.parse(**options).choices[0].message.parsed
        with client.chat.completions.stream(**options) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == found
