#!/usr/bin/env bash
# orjson 3.13.0: loads() reads JSON that dumps() cannot write again.
#
# Input: lists within lists, 254, 255, 900 and 1,024 levels deep, as JSON text.
# Expected: one limit for both directions, so that what was read can be passed on: dumps(loads(text)) == text.
# Seen: loads() takes 1,024 levels; dumps() takes 254, and raises TypeError ("Recursion limit reached") for 255. A server that reads a body with
# orjson and forwards or echoes a part of it fails for a valid request, after it has accepted it. Python's own json writes up to 900 levels again.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check orjson==3.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import json

import orjson


def nested(levels):
    return "[" * levels + "]" * levels


def can(function, *arguments):
    try:
        function(*arguments)
    except (TypeError, ValueError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"
    return True


for levels in (254, 255, 900, 1024):
    text = nested(levels)
    value = orjson.loads(text)
    print(levels, "levels: loads", True, "| dumps", can(orjson.dumps, value), "| json.dumps", can(lambda: json.dumps(json.loads(text))))
assert can(orjson.dumps, orjson.loads(nested(254))) is True
assert can(orjson.dumps, orjson.loads(nested(255))) != True and can(orjson.loads, nested(1024)) is True
PYTHON
