#!/usr/bin/env bash
# openai 3.57.0 (the Python client), chat.completions.create(stream=True) and chat.completions.stream().
#
# Input: an answer of one chunk, without a finish_reason, after which the connection ends, as a proxy ends it when the server behind it dies;
# no "data: [DONE]" comes. Or it sends an error as {"object": "error", "message": ...}, as engines did before {"error": {...}}.
# Expected: an exception, such as APIConnectionError or APIError: the end of a stream is marked, and here the mark is missing.
# Seen: the loop ends as if all had come, and get_final_completion() of the helper returns a completion with the text so far and
# finish_reason None, which its type does not allow. The error becomes a chunk whose choices are None; the helper leaves it out. Only
# {"error": ...} raises an APIError. Half of a chunk before the end is dropped, too.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0
"$folder/venv/bin/python" - <<'PYTHON'
import json

import httpx2
import openai

CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
FIRST = {**CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "The answer is"}, "finish_reason": None}]}
ENDINGS = {
    "nothing more": "",
    "half a chunk": "data: " + json.dumps(FIRST)[:60],
    "object error": 'data: {"object": "error", "message": "out of memory", "code": 500}\n\n',
    "error": 'data: {"error": {"message": "out of memory"}}\n\n',
}


def answer(request):
    """What a server sends before it ends the connection."""
    ending = ENDINGS[json.loads(request.content)["model"]]
    return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, text=f"data: {json.dumps(FIRST)}\n\n{ending}")


client = openai.OpenAI(api_key="none", max_retries=0, http_client=httpx2.Client(transport=httpx2.MockTransport(answer)))
asked = [{"role": "user", "content": "?"}]


def read(name):
    """The choices of each chunk, and the final completion's text and finish_reason; or the error's class."""
    try:
        chunks = [chunk.choices for chunk in client.chat.completions.create(model=name, messages=asked, stream=True)]
        with client.chat.completions.stream(model=name, messages=asked) as stream:
            choice = stream.get_final_completion().choices[0]
        return len(chunks), chunks[-1] is None, choice.message.content, choice.finish_reason
    except openai.OpenAIError as error:
        return type(error).__name__


found = {name: read(name) for name in ENDINGS}
for name, what in found.items():
    print(f"{name}: {what}")
assert found["nothing more"] == found["half a chunk"] == (1, False, "The answer is", None)
assert found["object error"] == (2, True, "The answer is", None)
assert found["error"] == "APIError"
PYTHON
