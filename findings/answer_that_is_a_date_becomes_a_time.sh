#!/usr/bin/env bash
# datasets 5.2.0 with pyarrow 26.0.1, load_dataset("json").
#
# Input: a file of answers, {"answer": "2024-05-01"} in each line; times with a zone; messages of a chat; hashes of 64 bits. With and without
# features=Features({"answer": Value("string")}), or Value("uint64") for hashes.
# Expected: strings, since JSON has no type for dates, and integers; with features, for certain.
# Seen: if every answer is a date or a time, the column is a timestamp: str() of an answer is "2024-05-01 00:00:00", which no prediction
# equals, and to_json writes {"answer": 1714521600000}. With features it is a string, "2024-05-01 00:00:00". A time loses its zone. One
# answer "unknown" makes all of them the strings of the file. A column with an integer from 2**63 on is float64, so that 2**63 + 1 and
# 2**53 + 1 lose their last digit; with features they are 2**63 and 2**53 in uint64. Nothing of this causes a message.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1
cd "$folder"
HF_HUB_OFFLINE=1 HF_HOME="$folder" venv/bin/python -W ignore - 2>messages <<'PYTHON' || { cat messages; exit 1; }
import json

from datasets import Features, Value, load_dataset


def load(name, rows, **options):
    with open(name, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    dataset = load_dataset("json", data_files=name, split="train", **options)
    print(rows, "->", dataset.features, [str(value) for value in dataset[:][next(iter(rows[0]))]])
    return dataset


dates = [{"answer": "2024-05-01"}, {"answer": "2024-12-24"}]
loaded = load("dates.jsonl", dates)
assert loaded.features["answer"] == Value("timestamp[s]") and str(loaded[0]["answer"]) == "2024-05-01 00:00:00"
loaded.to_json("written.jsonl")
with open("written.jsonl") as file:
    written = json.loads(next(file))
print("written:", written)
assert written == {"answer": 1714521600000}
assert load("strings.jsonl", dates, features=Features({"answer": Value("string")}))[0]["answer"] == "2024-05-01 00:00:00"
assert load("unknown.jsonl", [*dates, {"answer": "unknown"}])[0]["answer"] == "2024-05-01"
zoned = load("zoned.jsonl", [{"time": "2024-05-01T10:00:00+02:00"}])[0]["time"]
assert zoned.hour == 8 and zoned.tzinfo is None
chat = load("chat.jsonl", [{"messages": [{"role": "user", "content": "2024-05-01"}]}])
assert str(chat[0]["messages"][0]["content"]) == "2024-05-01 00:00:00"
hashes = [2**63 + 1, 2**53 + 1]
assert load("small.jsonl", [{"hash": 2**53 + 1}])[:]["hash"] == hashes[1:]
assert load("hashes.jsonl", [{"hash": number} for number in hashes])[:]["hash"] == [float(2**63), float(2**53)]
features = Features({"hash": Value("uint64")})
assert load("unsigned.jsonl", [{"hash": number} for number in hashes], features=features)[:]["hash"] == [2**63, 2**53]
PYTHON
