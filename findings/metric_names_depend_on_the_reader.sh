#!/usr/bin/env bash
# prometheus_client 0.26.0, choose_encoder, which picks a format by the Accept header of the request for /metrics.
#
# Input: metrics with a colon in their names, such as vLLM's "vllm:prompt_tokens". Prometheus' data model allows colons. The headers are
# those of Prometheus 2 (openmetrics-text;version=1.0.0), of Prometheus 3 (the same with escaping=allow-utf-8), and of curl (*/*).
# Expected: the same names in all formats, as the text format gives for escaping=underscores, too: it escapes what is no legal name.
# Seen: with the first header the samples are called vllm_prompt_tokens_total, while the lines with their types still say
# vllm:prompt_tokens. For the library's own parser each metric of a type has no samples, and each sample is of a metric of type "unknown".
# With the other two the colon stays. A dashboard thus loses its series when Prometheus changes, and curl shows names that are not stored.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check prometheus_client==0.26.0
"$folder/venv/bin/python" - <<'PYTHON'
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families

registry = CollectorRegistry()
Counter("vllm:prompt_tokens", "Prompt tokens.", registry=registry).inc(5)
Histogram("vllm:ttft_seconds", "Time to first token.", registry=registry, buckets=[1]).observe(0.5)


def answer(accept):
    encode, kind = choose_encoder(accept)
    text = encode(registry).decode()
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    print(f"Accept: {accept}\n  Content-Type: {kind}\n  samples:", *sorted(names))
    return text, {name for name in names if not name.endswith("_created")}


openmetrics = "application/openmetrics-text;version=1.0.0"
colons = {"vllm:prompt_tokens_total", "vllm:ttft_seconds_bucket", "vllm:ttft_seconds_count", "vllm:ttft_seconds_sum"}
for accept in ("*/*", "text/plain;version=1.0.0;escaping=underscores", f"{openmetrics};escaping=allow-utf-8,*/*;q=0.1"):
    text, names = answer(accept)
    assert names == colons
text, names = answer(f"{openmetrics},text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
assert names == {name.replace(":", "_") for name in colons} and "# TYPE vllm:prompt_tokens counter" in text
read = {family.name: (family.type, len(family.samples)) for family in text_string_to_metric_families(text)}
print("as the parser reads it, (type, samples):", read)
assert read["vllm:prompt_tokens"] == ("counter", 0) and read["vllm:ttft_seconds"] == ("histogram", 0)
assert all(kind == "unknown" for name, (kind, _) in read.items() if ":" not in name)
PYTHON
