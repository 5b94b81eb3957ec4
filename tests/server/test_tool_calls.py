"""Calls of tools are found in a text however it is cut into pieces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.server.tool_calls.formats import FORMATS, format_of
from minllm.server.tool_calls.stream import JsonEnd, ToolStream


def read(form, text, cuts=(), most=None):
    """(text, [[name, arguments], ...]) of a text that is cut at these places."""
    stream, pieces, begin = ToolStream(FORMATS[form], most), [], 0
    for end in sorted({cut for cut in cuts if cut < len(text)}):
        pieces += stream.feed(text[begin:end])
        begin = end
    pieces += stream.feed(text[begin:]) + stream.feed("", is_last=True)
    calls = []
    for piece in pieces:
        if piece.call is not None:
            if piece.name is not None:
                assert piece.call == len(calls)
                calls.append([piece.name, ""])
            calls[piece.call][1] += piece.text
    return "".join(piece.text for piece in pieces if piece.call is None), calls


CASES = [
    ("hermes", "plain text", ("plain text", [])),
    ("hermes", "a < b <tool", ("a < b <tool", [])),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', ("", [["f", '{"a": 1}']])),
    ("hermes", 'Hi\n<tool_call>{"arguments": {"x": 1}, "name": "g"}</tool_call>', ("Hi\n", [["g", '{"x": 1}']])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "}\\" {"}}</tool_call>', ("", [["f", '{"a": "}\\" {"}']])),
    ("hermes", '<tool_call>{"arguments": {"x": "</tool_call>\\""}, "name": "g"}</tool_call>', ("", [["g", '{"x": "</tool_call>\\""}']])),
    ("hermes", '<tool_call>"odd</tool_call> then', ('<tool_call>"odd</tool_call> then', [])),
    ("hermes", '<tool_call>"</tool_call><tool_call>{"name": "f"}</tool_call>', ('<tool_call>"</tool_call>', [["f", "{}"]])),
    ("hermes", "<tool_call>nonsense</tool_call> then", ("<tool_call>nonsense</tool_call> then", [])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', ("", [["f", '{"a": 1']])),
    ("llama3_json", '{"name": "f", "parameters": {"a": [{}]}}', ("", [["f", '{"a": [{}]}']])),
    ("llama3_json", ' <|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', ("", [["f", "{}"], ["g", "{}"]])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n and  more \n', ("\n and  more \n", [["f", "{}"]])),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {"a": "\\ud800"}}</tool_call>', ("", [["\ufffd", '{"a": "\\ud800"}']])),
    ("hermes", '<tool_call>{"arguments": {"a": "\\ud800"}, "name": "\\udfff"}</tool_call>', ("", [["\ufffd", '{"a": "\ufffd"}']])),
    ("llama3_json", '{"name": "f", "parameters": {}} and  more', (" and  more", [["f", "{}"]])),
    ("llama3_json", '; <|python_tag|>{"name": "f", "parameters": {}}', ("", [["f", "{}"]])),
    ("llama3_json", '\n <|python_tag|>{"a": 1}', ('\n <|python_tag|>{"a": 1}', [])),
    ("llama3_json", 'See {"name": 1}', ('See {"name": 1}', [])),
    ("llama3_json", '{"a": 1} is JSON', ('{"a": 1} is JSON', [])),
]


@pytest.mark.parametrize(("form", "text", "wanted"), CASES)
def test_every_way_to_cut_it(form, text, wanted):
    assert read(form, text) == wanted
    assert read(form, text, range(1, len(text))) == wanted
    for cut in range(len(text)):
        assert read(form, text, [cut]) == wanted


TEXTS = st.text(max_size=9) | st.just('"}</tool_call>')
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda one: st.lists(one, max_size=3) | st.dictionaries(TEXTS, one, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(
    calls=st.lists(st.tuples(st.text(min_size=1), st.dictionaries(TEXTS, VALUES, max_size=3)), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 200), max_size=20), escaped=st.booleans(), arguments_first=st.booleans(),
)  # fmt: skip
def test_any_arguments_come_through(calls, cuts, escaped, arguments_first):
    texts = []
    for name, arguments in calls:
        call = {"arguments": arguments, "name": name} if arguments_first else {"name": name, "arguments": arguments}
        texts.append(json.dumps(call, ensure_ascii=escaped))
    text = "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in texts)
    before, found = read("hermes", "Well:" + text, cuts)
    assert before == "Well:" and [(name, json.loads(arguments)) for name, arguments in found] == calls
    assert read("hermes", text, cuts, most=1)[1] == found[:1]


PARTS = {
    "hermes": ["<tool_call>", "</tool_call>", '{"name": "f", "arguments": {', '{"arguments": {"a": "', ' "name": "g"', "</tool_", "<"],
    "llama3_json": ["<|python_tag|>", '{"name": "f", "parameters": {', '{"parameters": {"a": "', ' "name": "g"', "; ", "<|py", ";"],
}


@pytest.mark.parametrize("form", FORMATS)
@given(data=st.data(), cuts=st.lists(st.integers(0, 100), max_size=9))
def test_a_stream_of_any_text_is_its_whole(form, data, cuts):
    text = "".join(data.draw(st.lists(st.sampled_from([*PARTS[form], *'{}[]",:\\ \nx1']), max_size=20)))
    assert read(form, text) == read(form, text, cuts) == read(form, text, range(1, len(text)))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"arguments": {"a": "%s"}, "name": "f"}</tool_call>' % ("</tool_call>" * 1000)),
        ("hermes", '<tool_call>{"name": "%s", "arguments": {}}</tool_call>' % ("f" * 10_000)),
        ("llama3_json", '{"parameters": {"a": "%s"}, "name": "f"}' % ("x" * 10_000)),
    ],
)
def test_a_long_call_is_read_once(form, text, monkeypatch):
    num_read, feed = [], JsonEnd.feed
    monkeypatch.setattr(JsonEnd, "feed", lambda self, text: num_read.append(len(text)) or feed(self, text))
    assert len(read(form, text, range(4, len(text), 4))[1]) == 1
    assert sum(num_read) <= len(text)


def test_the_template_tells_the_format():
    assert format_of("{{ messages }}") is None
    assert format_of("{% if tools %}<tool_call>{% endif %}") == FORMATS["hermes"]
    assert format_of("{% if tools %}<|python_tag|>{% endif %}") == FORMATS["llama3_json"]
