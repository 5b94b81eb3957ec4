#!/usr/bin/env bash
# mistral-common 1.13.1, chats that end with an answer to be continued, encoded with the bundled tokenizers v1, v2, v3, v7 and Tekken.
#
# Input: AssistantMessage(content="def f():\n    ", prefix=True), so that the model continues after the indentation; the same with
# continue_final_message; and a user message of two text chunks, "foot" and "ball".
# Expected: the prompt ends with the prefix; the chunks follow one another, as two pieces of one text do.
# Seen: all but v1 cut the spaces at the end of an answer, also of a prefix: the prompt ends with the line break, so that the caller joins
# the new text to an indentation that the model has not seen. A tab or a line break at the end stays. An answer "x = " in the middle of a
# chat is written as "x =", so that a cache of its tokens ends there. All versions put an empty line between the chunks: "foot\n\nball".
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mistral-common==1.13.1 sentencepiece==0.2.3
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from mistral_common.protocol.instruct.messages import AssistantMessage, TextChunk, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

CODE = "def f():\n    "


def encoded(tokenizer, *messages, **settings):
    text = tokenizer.encode_chat_completion(ChatCompletionRequest(messages=list(messages), model="model", **settings)).text
    return text.replace("▁", " ").replace("<0x0A>", "\n").replace("<0x09>", "\t")


tokenizers = {name: getattr(MistralTokenizer, name)() for name in ("v1", "v2", "v3", "v7")}
for name, tokenizer in {**tokenizers, "v3 with Tekken": MistralTokenizer.v3(is_tekken=True)}.items():
    question = UserMessage(content="Code.")
    prefix = encoded(tokenizer, question, AssistantMessage(content=CODE, prefix=True))
    continued = encoded(tokenizer, question, AssistantMessage(content=CODE), continue_final_message=True)
    tab = encoded(tokenizer, question, AssistantMessage(content="if x:\n\t", prefix=True))
    chat = encoded(tokenizer, question, AssistantMessage(content="x = "), question)
    chunks = encoded(tokenizer, UserMessage(content=[TextChunk(text="foot"), TextChunk(text="ball")]))
    print(f"{name}: {prefix!r}, {chat!r}, {chunks!r}")
    assert prefix == continued and prefix.endswith(CODE if name == "v1" else CODE.rstrip(" "))
    assert tab.endswith("if x:\n\t") and ("x = </s>" if name == "v1" else "x =</s>") in chat
    assert "foot\n\nball" in chunks
PYTHON
