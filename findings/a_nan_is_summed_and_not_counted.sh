#!/usr/bin/env bash
# prometheus_client 0.26.0, Histogram and Summary: an observation that is NaN.
#
# Input: 0.5, NaN and 1.5, as a rate of tokens per second of an answer in no time may be, observed with both.
# Expected: three observations in both, the NaN in the bucket "+Inf", which holds what no other bucket does; or none of the NaN.
# Seen: the histogram has counted 2, and the summary 3. Both sums are NaN, and stay so until the process ends, because every later number
# is added to NaN: the average of all requests is gone, while the buckets look right. Nothing is raised. Infinity is counted in both.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check prometheus_client==0.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import math

from prometheus_client import CollectorRegistry, Histogram, Summary


def samples(value):
    """The samples of a histogram and of a summary that observed this value between two others."""
    registry = CollectorRegistry()
    metrics = Histogram("h", "a histogram", registry=registry, buckets=[1, 2]), Summary("s", "a summary", registry=registry)
    for observation in (0.5, value, 1.5):
        for metric in metrics:
            metric.observe(observation)
    names = ("h_count", "h_sum", "s_count", "s_sum")
    found = {name: registry.get_sample_value(name) for name in names}
    return {**found, "+Inf": registry.get_sample_value("h_bucket", {"le": "+Inf"})}


for value in (3.0, math.inf, math.nan):
    found = samples(value)
    print(f"0.5, {value}, 1.5: {found}")
    assert found["s_count"] == 3 and found["h_count"] == found["+Inf"] == (2 if math.isnan(value) else 3)
    assert all(str(found[name]) == str(2.0 + value) for name in ("h_sum", "s_sum"))
PYTHON
