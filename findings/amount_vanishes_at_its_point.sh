#!/usr/bin/env bash
# jiter 0.19.0, from_json with partial_mode, and two that parse with it: openai 3.57.0 in its stream helper, pydantic 2.14.4
# (pydantic-core 2.50.5).
#
# Input: the arguments of a tool, {"to": "Anna", "amount": 1200.5, "ok": true}, in pieces as a model writes them.
# Expected: a value that may go on is left out until its end, as strings and "tr" are; an amount is seen once it is whole.
# Seen: a number counts as whole after each digit: {"amount": 1}, 12, 120, 1200. At "1200." it is gone, and so is its key, and with "5" it
# is back as 1200.5. "1e" and "-" leave it out as well; of "1e5" and "1e55" both are given. openai's events pass this on as parsed and
# parsed_arguments: a program that acts when all required keys are there pays 1, and one that reads parsed_arguments["amount"] in every
# event raises KeyError after it has read it three times. partial-json-parser 0.2.1.1 gives 1200 at the point.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    openai==3.57.0 jiter==0.19.0 pydantic==2.14.4 partial-json-parser==0.2.1.1.post7
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import threading

import jiter
import openai
import partial_json_parser
import pydantic
import pydantic_core

pieces = ['{"to":"An', 'na","amount":1', "20", "0", ".", "5", ',"ok":tr', "ue}"]


class Payment(pydantic.BaseModel):
    to: str
    amount: float
    ok: bool


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for number, piece in enumerate(pieces):
            call = {"index": 0, "function": {"arguments": piece}}
            if number == 0:
                call |= {"id": "call_1", "type": "function", "function": {"name": "Payment", "arguments": piece}}
            self.send({"tool_calls": [call]}, None)
        self.send({}, "tool_calls")
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, delta, reason):
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *arguments):
        pass


texts = ["".join(pieces[: number + 1]) for number in range(len(pieces))]
amounts = [None, 1, 120, 1200, None, 1200.5, 1200.5, 1200.5]
for name, parse in (
    ("jiter", lambda text: jiter.from_json(text.encode(), partial_mode=True)),
    ("pydantic_core", lambda text: pydantic_core.from_json(text, allow_partial=True)),
):
    found = [parse(text) for text in texts]
    print(name, found)
    assert [value.get("amount") for value in found] == amounts
    assert [value.get("to") for value in found[:2]] == [None, "Anna"] and [value.get("ok") for value in found[-2:]] == [None, True]
    assert [parse("[" + text) for text in ("1e", "-", "1e5", "1e55")] == [[], [], [1e5], [1e55]]
assert partial_json_parser.loads(texts[4])["amount"] == 1200

server = http.server.HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
tools, messages = [openai.pydantic_function_tool(Payment)], [{"role": "user", "content": "Pay."}]
with client.chat.completions.stream(model="m", messages=messages, tools=tools) as stream:
    found = [event.parsed_arguments for event in stream if event.type == "tool_calls.function.arguments.delta"]
server.shutdown()
print("openai", found)
assert [value and value.get("amount") for value in found] == amounts
PYTHON
