#!/usr/bin/env bash
# mistral-common 1.13.1, a chat with the result of a tool, encoded with the bundled tokenizers v2, v3 and v7.
#
# Input: a ToolMessage whose content is a string, as its type demands: the short hash of a commit "63e1094", versions "0.10" and "1_0", an
# amount "12345678901234567.89", and JSON with a key that occurs twice; and a call with the arguments {"x": 0.10}.
# Expected: the prompt holds these strings, as it holds those of a user.
# Seen: with v2 and v3 the result is parsed as JSON if it can be, and written again: the hash becomes Infinity, the version 0.1, the amount
# 1.2345678901234568e+16, and of {"a": 1, "a": 2} the second value is left. "63f1094" is no number, and stays. v7 keeps all of them. The
# arguments become {"x": 0.1} with v7 as well: not what the model wrote, so that a cache of its tokens ends there.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mistral-common==1.13.1 sentencepiece==0.2.3
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

CONTENTS = {
    "63f1094": "63f1094",
    "63e1094": "Infinity",
    "0.10": "0.1",
    "1_0": "1_0",
    "12345678901234567.89": "1.2345678901234568e+16",
    '{"a": 1, "a": 2}': '{"a": 2}',
}
for name in ("v2", "v3", "v7"):
    tokenizer = getattr(MistralTokenizer, name)()
    for content, expected in CONTENTS.items():
        call = ToolCall(id="123456789", function=FunctionCall(name="f", arguments='{"x": 0.10}'))
        messages = [
            UserMessage(content="Which commit?"),
            AssistantMessage(tool_calls=[call]),
            ToolMessage(content=content, name="f", tool_call_id="123456789"),
        ]
        request = ChatCompletionRequest(messages=messages, model="model")
        text = tokenizer.encode_chat_completion(request).text.replace("▁", " ")
        result = text[text.index("[TOOL_RESULTS]") :]
        print(f"{name}: {content} is written as {result}")
        assert (content if name == "v7" else expected) in result and (content in result) == (content == expected or name == "v7")
        assert '"x": 0.1}' in text and "0.10}" not in text
PYTHON
