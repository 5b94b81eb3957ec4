"""The record of measurements as Markdown: a short table, and a page with that table and every row.

These functions generate, from docs/results/h200.json, the tables between two marker comments of docs/results.md;
`tools/record.py` writes them, and a test compares them with the record.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minllm.bench.record import origin
from minllm.bench.row_command import commands_of

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

# The rows of the short table: (benchmark, prefix of the case, variant or None for any, label)
GATE_AND_UP, INT4 = "28672x4096", "int4 in groups of 128"
HEADS = "32/8 heads, d 128, bfloat16, contiguous"
ONE = "(random weights), batch 1, context 1024"
SHORT = (
    ("decode step", f"llama-3.2-1b {ONE}", "graph replay", "a decode step, Llama 3.2 1B shape, batch 1, context 1,024"),
    ("decode step", f"llama-3.1-8b {ONE}", "graph replay", "a decode step, Llama 3.1 8B shape, batch 1, context 1,024"),
    ("decode step", "llama-3.1-8b (random weights in int4_g128), batch 1,", "graph replay", "the same with weights in int4, groups of 128"),
    ("serving throughput", "llama-3.2-1b (random weights), mixed-prompts", None, "256 requests at once, 128 tokens each, 1B shape"),
    ("serving throughput", "llama-3.1-8b (random weights), mixed-prompts", None, "the same, 8B shape"),
    ("whole prefill", "llama-3.1-8b", "bfloat16", "a whole prefill, Llama 3.1 8B shape, 2,048 tokens"),
    ("matmul", "8192x8192x8192", "wgmma", "8192x8192x8192 (`wgmma`)"),
    ("matmul", "2048x28672x4096", "wgmma", "2048 rows x 28672x4096 (`wgmma`)"),
    ("matmul", "64x4096x14336", "flat", "64 rows x 4096x14336 (`flat`)"),
    ("matmul", "8x6144x4096", "flat", "8 rows x 6144x4096 (`flat`)"),
    ("matmul", "1x4096x14336", "gemv", "one row x 4096x14336 (`gemv`)"),
    ("matmul, quantised", f"2048 rows x {GATE_AND_UP}, fp8", "wgmma", "2048 rows x 28672x4096 in fp8 (`wgmma`)"),
    ("matmul, quantised", f"16 rows x {GATE_AND_UP}, {INT4}", "tensor_core_gemv", "16 rows x 28672x4096 in int4 (`tensor_core_gemv`)"),
    ("matmul, quantised", f"1 row x {GATE_AND_UP}, {INT4}", "tensor_core_gemv", "one row x 28672x4096 in int4 (`tensor_core_gemv`)"),
    ("prefill attention", f"16x512, {HEADS}", "flash_attention_3", "prefill attention 16x512 (`flash_attention_3`)"),
    ("prefill attention", f"4x4096, {HEADS}", "flash_attention_3", "prefill attention 4x4096 (`flash_attention_3`)"),
    ("prefill attention", f"1x16384, {HEADS}", "flash_attention_3", "prefill attention 1x16384 (`flash_attention_3`)"),
    ("decode attention", "1x131072", "split_tensor_core", "decode attention 1x131072 (`split_tensor_core`)"),
    ("decode attention", "64x4096", "split_tensor_core", "decode attention 64x4096 (`split_tensor_core`)"),
    ("decode attention, quantised", "64x4096, 32/8 heads, d 128, fp8", "split_quantized",
     "decode attention 64x4096, fp8 (`split_quantized`)"),
    ("normalization", "", "rms_norm", "RMSNorm with residual, 16384x4096"),
)  # fmt: skip


def number(value: float | None) -> str:
    """A value with three or four significant figures."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(row: Mapping[str, Any], record: Mapping[str, Any]) -> float | None:
    """A row's share of the hardware's limit: of the record's one ceiling if it is a rate of that kind; None without a limit."""
    ceiling = record["ceilings"].get({"TB/s": "copy_tb_s", "TFLOP/s": "bf16_tflops"}.get(row["unit"], ""))
    return row["value"] / ceiling if ceiling and row["of_limit"] is not None else row["of_limit"]


def spread(row: Mapping[str, Any]) -> str:
    """The range of several processes, as text: " (3,890 to 3,921)"; "" for one process."""
    return f" ({number(row['low'])} to {number(row['high'])})" if row.get("low") is not None else ""


def cells(row: Mapping[str, Any], record: Mapping[str, Any], metrics: Sequence[str] = ()) -> list[str]:
    """The cells of a row behind its name: value, share of the limit, peer, ratio, further metrics."""
    of_limit = share(row, record)
    percent = "" if of_limit is None else f"{100 * of_limit:.0f} %"
    peer = "" if row["peer_value"] is None else f"{row['peer']} {number(row['peer_value'])}"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    return [
        f"{number(row['value'])}{spread(row)} {row['unit']}",
        percent,
        peer,
        ratio,
        *(number(row.get("metrics", {}).get(m)) for m in metrics),
    ]


HEADINGS = ("measured", "of the limit", "peer, in the same run", "ratio of speeds")


def table(rows: Mapping[str, dict], record: Mapping[str, Any], further: bool = True) -> str:
    """The table of {name: row}, without the columns that no row fills. further: with the rows' metrics."""
    metrics = list(dict.fromkeys(name for row in rows.values() for name in row.get("metrics", {}))) if further else []
    every = {name: cells(row, record, metrics) for name, row in rows.items()}
    filled = [i for i in range(len(HEADINGS) + len(metrics)) if i == 0 or any(one[i] for one in every.values())]
    headings = [*HEADINGS, *metrics]
    lines = [["", *(headings[i] for i in filled)], ["---"] * (1 + len(filled))]
    lines += [[name, *(one[i] for i in filled)] for name, one in every.items()]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines)


# docs/assets/javascripts/results-filter.js puts its fields here
FILTER = '<div class="interactive" id="results-filter"><noscript>Every table below opens; only filtering needs JavaScript.</noscript></div>'


def provenance(record: dict) -> str:
    """Machine, date, packages and ceilings, as text."""
    packages = ", ".join(f"{name} {version}" for name, version in record["packages"].items())
    return (
        f"One {record['device']}, driver {record['driver']}, {record['date']}, commit {record['commit']} ({packages}); rows of other runs "
        f"name theirs. A copy moves {record['ceilings']['copy_tb_s']:.2f} TB/s, cuBLAS multiplies at "
        f"{record['ceilings']['bf16_tflops']:.0f} TFLOP/s in bfloat16."
    )


def short_table(record: dict) -> str:
    """The few rows of SHORT that the record has."""
    found = ((name, recorded_in(record, benchmark, case, variant)) for benchmark, case, variant, name in SHORT)
    return f"{table({name + origin(row, record): row for name, row in found if row}, record, further=False)}\n\n{provenance(record)}"


def recorded_in(record: dict, benchmark: str, case: str, variant: str | None) -> dict | None:
    """The first row of a benchmark and a variant, if one is given, whose case begins so, float32 left out; None if there is none."""
    found = (row for row in record["rows"] if row["benchmark"] == benchmark and variant in (None, row["variant"]))
    return next((row for row in found if row["case"].startswith(case) and "float32" not in row["case"]), None)


# The sections of the results page: (title, prefixes of its benchmarks). A benchmark belongs to the first section that matches.
SECTIONS = (
    ("Serving", ("serving", "pipeline", "start-up")),
    ("Accuracy", ("perplexity", "bits", "KV cache accuracy")),
    ("Memory and copies", ("virtual memory", "allocation", "host copy", "preemption", "memory mode")),
    ("Whole models", ("decode step", "whole prefill", "time to first token", "length", "batch")),
    ("Kernels", ("",)),
)
WHOLE_MODELS = ("decode", "prefill")  # names that are also prefixes of kernel benchmarks


def section_of(benchmark: str) -> str:
    """The title of the section that holds a benchmark."""
    if benchmark in WHOLE_MODELS:
        return "Whole models"
    return next(title for title, beginnings in SECTIONS if benchmark.startswith(beginnings))


def anchor(benchmark: str) -> str:
    """The anchor of a benchmark's rows: "serving-gpu-idle" for "serving, GPU idle"."""
    return re.sub(r"[^\w]+", "-", benchmark.lower()).strip("-")


def folded(benchmark: str, rows: Sequence[dict], record: dict) -> str:
    """The rows of a benchmark as a collapsed table."""
    shown = table({f"{row['case']}, {row['variant']}{origin(row, record)}": row for row in rows}, record)
    title = f"{benchmark[0].upper()}{benchmark[1:]}: {len(rows)} row{'s' if len(rows) > 1 else ''}"
    head = f'<details class="result-rows" id="{anchor(benchmark)}" markdown="1">\n<summary>{title}</summary>'
    commands = " and ".join(f"`{command}`" for command in commands_of(rows))
    return "\n".join([head, "", shown, "", f"Measured by {commands}.", "", "</details>"])


def full_table(record: dict) -> str:
    """The short table, then all rows in collapsed tables, by section and benchmark."""
    rows_of: dict[str, list[dict]] = {}
    for row in record["rows"]:
        rows_of.setdefault(row["benchmark"], []).append(row)
    parts = ["## The short table", short_table(record), "## All rows", FILTER]
    for title, _ in reversed(SECTIONS):
        tables = {name: rows for name, rows in rows_of.items() if section_of(name) == title}
        folds = [folded(name, rows, record) for name, rows in tables.items()]
        parts += [f"### {title}", *folds] if folds else []
    return "\n\n".join(parts)


def replace_between_markers(path: Path, table: str) -> None:
    """Write `table` between the two marker comments of a Markdown file; the rest is kept."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
