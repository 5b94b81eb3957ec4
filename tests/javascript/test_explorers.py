"""The explorers' address and filter: what an address may ask, that a link brings back what was shown, and which rows words find."""

import json
import random
import re

from tests.javascript.modules import ROOT, needs_javascript, run

RECORD = json.loads((ROOT / "docs/results/h200.json").read_text(encoding="utf-8"))


@needs_javascript
def test_an_address_brings_the_fields_back_and_refuses_what_they_cannot_take():
    rng, cases = random.Random(7), []
    for _ in range(60):
        values = [f"v {number}&=+%é" for number in range(5)] + [""]
        fields = {f"field{number}": dict(raw=rng.choice(values), allowed=values) for number in range(4)}
        cases.append(dict(fields=fields, query="", set={name: rng.choice(values) for name in fields if rng.random() < 0.7}))
    stale = dict(fields=dict(batch=dict(raw="16", allowed=["16", "32"])), query="?batch=x&batch2=1", set={})
    *answers, refused = run("address_cases.mjs", "address-state.js", [*cases, stale])
    for case, answer in zip(cases, answers, strict=True):
        changed = {name: value for name, value in case["set"].items() if value != case["fields"][name]["raw"]}
        assert answer["readAgain"] == changed and answer["refused"] == []
    assert refused["wanted"] == {}
    assert "batch = “x”" in refused["refused"][0] and "shows 16" in refused["refused"][0] and "“batch2”" in refused["refused"][1]


def found(row: str, words: str) -> bool:
    """The filter's rule, said with tokens: a number has to be one of the row's numbers, another word has to be somewhere in it."""
    numbers = re.findall(r"\d+(?:\.\d+)*", row)
    return all(word in numbers if re.fullmatch(r"\d[\d.]*", word) else word in row.lower() for word in words.split())


@needs_javascript
def test_words_find_the_rows_of_the_record():
    rng, cases = random.Random(3), []
    for _ in range(300):
        row, other = rng.choice(RECORD["rows"]), rng.choice(RECORD["rows"])
        text = f"{row['benchmark']} {row['case']}, {row['variant']} (2026-11-21, commit 5f46087)"
        some = re.findall(r"[a-z]+|\d+", rng.choice([row, other])["case"].lower())
        cases.append(dict(row=text, words=" ".join(rng.sample(some, min(len(some), 2)))))
    answers = run("results_filter_cases.mjs", "results-filter.js", cases)
    for case, answer in zip(cases, answers, strict=True):
        assert answer == found(case["row"], case["words"]), case
    assert True in answers and False in answers
