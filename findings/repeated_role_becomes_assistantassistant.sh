#!/usr/bin/env bash
# openai 3.57.0 (the Python client), chat.completions.stream(), which puts the chunks of a stream together.
#
# Input: three chunks that all say "role": "assistant", as Ollama's server sends them; a tool call whose second chunk repeats its id and its
# name; and fields of the server's own in each chunk, "token_id" and "cached".
# Expected: the role, the id and the name as they were sent; of "token_id" the first, the last, or a list.
# Seen: the role is "assistantassistantassistant", the id "call_1call_1", and the name "get_weatherget_weather". Strings are joined,
# whatever their meaning, and numbers are added: token_id 3, 4 and 5 become 12, and three times True is 3. No error is raised, although the
# type of the role allows "assistant" alone. The caller looks for a tool that does not exist, and sends this message back later.
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


def final_message(deltas):
    """The message that the helper puts together from these deltas."""
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices[-1]["finish_reason"] = "stop"
    body = "".join(f"data: {json.dumps({**head, 'choices': [choice]})}\n\n" for choice in choices) + "data: [DONE]\n\n"

    def answer(request):
        return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, text=body)

    client = openai.OpenAI(api_key="none", max_retries=0, http_client=httpx2.Client(transport=httpx2.MockTransport(answer)))
    with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "?"}]) as stream:
        return stream.get_final_completion().choices[0].message.to_dict()


def call(name, arguments, **more):
    return {"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}, **more}]}


once = final_message([{"role": "assistant", "content": "a"}, {"content": "b"}])
repeated = final_message([{"role": "assistant", "content": text, "token_id": 3 + n, "cached": True} for n, text in enumerate("abc")])
begin, rest = call("get_weather", "", id="call_1", type="function"), call("get_weather", "{}", id="call_1", type="function")
called = final_message([{"role": "assistant", **begin}, rest])["tool_calls"][0]
print(once, repeated, called, sep="\n")
assert once["role"] == "assistant" and once["content"] == "ab"
assert repeated["role"] == "assistant" * 3 and repeated["content"] == "abc" and repeated["token_id"] == 12 and repeated["cached"] == 3
assert called["id"] == "call_1" * 2 and called["function"]["name"] == "get_weather" * 2 and called["type"] == "function"
PYTHON
