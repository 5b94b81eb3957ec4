#!/usr/bin/env bash
# httpx 0.28.1, Response.iter_lines, and two clients that read streams with it: ollama 0.6.3 and huggingface_hub 2.4.0.
#
# Input: a streamed answer in which one chunk holds U+0085 (next line) or U+2028 (line separator). JSON allows both unescaped in a string,
# and json.dumps(ensure_ascii=False) writes them so, as does orjson; Go's encoder escapes only the second. Lines of SSE end with CR or LF,
# lines of NDJSON with LF.
# Expected: the text with that character, as openai 3.57.0 gives it.
# Seen: iter_lines splits as str.splitlines does, at these characters, too. ollama.Client.chat and InferenceClient.chat_completion parse a
# part of a JSON object and raise JSONDecodeError in the middle of the answer; the rest is lost.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check httpx==0.28.1 ollama==0.6.3 huggingface_hub==2.4.0 openai==3.57.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import json

import httpx
import httpx2
import huggingface_hub
import ollama
import openai

asked = {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True}
texts = []


def answering(module):
    """A client of httpx or httpx2 to which a server answers with the texts: in NDJSON as Ollama's, or in SSE as that of OpenAI."""
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": ""}

    def answer(request):
        messages = [{"role": "assistant", "content": text} for text in texts]
        if request.url.path == "/api/chat":
            lines = [json.dumps({"message": message}, ensure_ascii=False) + "\n" for message in messages]
        else:
            chunks = [{**head, "choices": [{"index": 0, "delta": message}]} for message in messages]
            lines = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks]
        return module.Response(200, headers={"Content-Type": "text/event-stream"}, content="".join(lines).encode())

    return module.Client(transport=module.MockTransport(answer), base_url="http://server")


local, hub = ollama.Client(), huggingface_hub.InferenceClient(base_url="http://server/v1")
local._client = answering(httpx)
huggingface_hub.set_client_factory(lambda: answering(httpx))
other = openai.OpenAI(api_key="none", base_url="http://server/v1", http_client=answering(httpx2))
streams = {
    "ollama": lambda: (part.message.content for part in local.chat(**asked)),
    "huggingface_hub": lambda: (part.choices[0].delta.content for part in hub.chat_completion(**asked)),
    "openai": lambda: (part.choices[0].delta.content for part in other.chat.completions.create(**asked)),
}
for character in " \u0085\u2028":
    texts = ["a", f"b{character}c", "d"]
    for name, stream in streams.items():
        found = []
        try:
            found.extend(stream())
        except json.JSONDecodeError as error:
            found.append(type(error).__name__)
        print(f"U+{ord(character):04X} {name}: {found}")
        assert found == (texts if character == " " or name == "openai" else ["a", "JSONDecodeError"])
PYTHON
