#!/usr/bin/env bash
# sglang 0.5.23, the parsers of tool calls for GLM-4.5 and Hermes: detect_and_parse for an answer as a whole, parse_streaming_increment
# for a stream.
#
# Input: calls as the models' chat templates write them, with parameters whose schema says "string": a version 1.10, the word null, a text
# in quotation marks, JSON without spaces, and a text that mentions </tool_call>, which stands in a JSON string of a Hermes call.
# Expected: the same arguments in both ways, and those that the model wrote, as the streams have them.
# Seen: the stream has "1.10", "null", "\"yes\"", "{\"x\":1}". As a whole the same texts are "1.1", "None", "yes" and "{\"x\": 1}": the
# value is parsed as JSON or Python first, and made a string again because of the schema. The Hermes call is found in the stream, and as a
# whole it is no call: the text ends at the first </tool_call>, and the client gets it as content. Text behind a call comes in the stream
# alone. A client that sets stream=True thus calls a tool with other arguments than one that does not. All runs on the CPU, without a
# server.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 triton==3.9.0 transformers==5.24.0 numpy==2.4.6 openai==3.57.0 partial-json-parser==0.2.1.1.post7 \
    orjson==3.13.0 msgspec==0.23.0 aiohttp==3.14.5 fastapi==0.165.0 uvicorn==0.54.0 pyzmq==27.3.0 pillow==13.0.0 ipython==9.18.1 \
    pybase64==1.5.1 psutil==7.2.2 requests==2.34.2
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps sglang==0.5.23
"$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'PYTHON' || { tail -n 5 "$folder/log"; exit 1; }
import json

from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.glm4_moe_detector import Glm4MoeDetector
from sglang.srt.function_call.hermes_detector import HermesDetector

schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
tools = [Tool(type="function", function=Function(name="note", description="", parameters=schema))]


def whole(parser, text):
    """The content of an answer, and the argument of each call."""
    found = parser().detect_and_parse(text, tools)
    return found.normal_text, [json.loads(call.parameters)["text"] for call in found.calls]


def streamed(parser, text, size):
    stream, content, arguments = parser(), "", {}
    for begin in range(0, len(text), size):
        found = stream.parse_streaming_increment(text[begin : begin + size], tools)
        content += found.normal_text or ""
        for call in found.calls or []:
            arguments[call.tool_index] = arguments.get(call.tool_index, "") + (call.parameters or "")
    return content, [json.loads(text)["text"] for text in arguments.values()]


for value, changed in (("1.10", "1.1"), ("null", "None"), ('"yes"', "yes"), ('{"x":1}', '{"x": 1}'), ("1.2.3", "1.2.3")):
    call = f"<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
    found = whole(Glm4MoeDetector, call)[1], *(streamed(Glm4MoeDetector, call, size)[1] for size in (1, 4, 9))
    print(f"GLM-4.5, the model wrote {value}: as a whole {found[0]}, streamed {found[1]}")
    assert found == ([changed], [value], [value], [value])

value = "It ends with </tool_call>."
call = f"<tool_call>\n{json.dumps({'name': 'note', 'arguments': {'text': value}})}\n</tool_call>"
found = whole(HermesDetector, call), streamed(HermesDetector, call, 4)
print(f"Hermes, the model wrote {value!r}: as a whole {found[0]}, streamed {found[1]}")
assert found[0] == (call, []) and found[1][1] == [value]
behind = call.replace(value, "x") + " Done."
assert whole(HermesDetector, behind) == ("", ["x"]) and streamed(HermesDetector, behind, 4)[0].strip() == "Done."
PYTHON
