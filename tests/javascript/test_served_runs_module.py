"""The metrics of the page about serving: NumPy's percentiles, and counts by hand; and the record that the page and lesson 22 share."""

import json

import numpy as np

from tests.javascript.modules import ROOT, needs_javascript, run

RECORD = json.loads((ROOT / "docs/results/serving_runs.json").read_text(encoding="utf-8"))


@needs_javascript
def test_metrics_are_those_of_numpy():
    deadline = RECORD["deadline_ms"]
    runs = [row["requests"] for row in RECORD["rows"]] + [[["question", 5, None, 6]]]
    answers = run("served_runs_cases.mjs", "served-runs.js", [dict(requests=one, deadline=deadline) for one in runs])
    for requests, found in zip(runs, answers, strict=True):
        answered = [one for one in requests if one[2] is not None]
        in_time = sum(end - arrival <= deadline for _, arrival, _, end in answered)
        assert (found["count"], found["refused"], found["inTime"]) == (len(requests), len(requests) - len(answered), in_time)
        for percent in (50, 99):
            wanted = np.percentile([first - arrival for _, arrival, first, _ in answered], percent) if answered else None
            assert found[f"p{percent}"] is None if wanted is None else abs(found[f"p{percent}"] - wanted) < 1e-6


def test_every_server_got_the_same_number_of_requests_in_order():
    assert {len(row["requests"]) for row in RECORD["rows"]} == {48}
    for row in RECORD["rows"]:
        assert [one[1] for one in row["requests"]] == sorted(one[1] for one in row["requests"])
        assert all(arrival <= (arrival if first is None else first) <= end for _, arrival, first, end in row["requests"])
