#!/usr/bin/env bash
# @huggingface/jinja 0.5.11, the engine for chat templates of transformers.js, beside Jinja2 3.1.6.
#
# Input: templates with lstrip('\n') and strip('\n') on an answer whose first line is indented, as templates of models that think use them to
# join thoughts and answer; with a comparison of two lists; and with the remainder of a negative number, as a turn before the first one.
# Expected: the texts of Jinja2: the line breaks go, the four spaces stay; equal lists are equal; -1 % 2 is 1.
# Seen: strip, lstrip and rstrip do not look at their argument and remove all white space, so that the first line of code loses its indentation, and
# 'xxa'.lstrip('x') stays as it is. ['user'] == ['user'] is false, and a sorted list equals no list. -1 % 2 is -1. There is no message.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" @huggingface/jinja@0.5.11
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jinja2==3.1.6
cat >"$folder/render.mjs" <<'JAVASCRIPT'
import { Template } from "@huggingface/jinja";

const { templates, values } = JSON.parse(process.argv[2]);
console.log(JSON.stringify(templates.map((template) => new Template(template).render(values))));
JAVASCRIPT
"$folder/venv/bin/python" - "$folder/render.mjs" <<'PYTHON'
import json
import subprocess
import sys

from jinja2 import Environment

VALUES = {"answer": "\n\n    return x\n", "roles": ["user"], "seen": 0}
TEMPLATES = {
    r"{{ answer.lstrip('\n') }}": "return x\n",
    r"{{ answer.strip('\n') }}": "return x",
    "{{ 'xxa'.lstrip('x') }}": "xxa",
    "{{ 'equal' if roles == ['user'] else 'other' }}": "other",
    "{{ 'equal' if ['b', 'a']|sort == ['a', 'b'] else 'other' }}": "other",
    "{{ (seen - 1) % 2 }}": "-1",
    "{{ 'equal' if roles[0] == 'user' else 'other' }}": "equal",
    "{{ 5 % 2 }}": "1",
}
arguments = json.dumps({"templates": list(TEMPLATES), "values": VALUES})
found = json.loads(subprocess.run(["node", sys.argv[1], arguments], check=True, capture_output=True, text=True).stdout)
for (template, expected), text in zip(TEMPLATES.items(), found, strict=True):
    right = Environment(keep_trailing_newline=True).from_string(template).render(VALUES)
    print(f"{template}: {right!r}, of @huggingface/jinja {text!r}")
    assert text == expected and (text == right) == (template in list(TEMPLATES)[-2:])
PYTHON
