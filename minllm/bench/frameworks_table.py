"""The recorded rows of docs/results beside vLLM's figures on the same work, as the table of docs/frameworks.md.

vLLM was measured by us: versions 0.22.0 and 0.25.1, one NVIDIA H200 (141 GB, driver 580), bfloat16, random weights, greedy, in process,
November 2026; of 0.25.1 the better of its default mode and of one without prefix caching. A row is shown once ours is recorded.
"""

from typing import NamedTuple

SHAPE = "llama-3.1-8b (random weights)"
SMALL = "llama-3.2-1b (random weights)"
ALL_AT_ONCE = "256 requests, all at once"


class Compared(NamedTuple):
    """One piece of work: vLLM's figures by version, and where ours is recorded."""

    name: str
    record: str
    benchmark: str
    case: str
    unit: str
    vllm_0_22: float
    vllm_0_25: float

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")


COMPARED = (
    *(
        Compared(f"8B shape, a decode step at batch {batch}, prompts of 128", "lessons/h200", "batch",
                 f"{SHAPE}, batch {batch}, prompt 128, ", "ms", *figures)
        for batch, figures in ((1, (4.86, 4.87)), (16, (5.12, 5.12)), (64, (5.89, 5.92)), (256, (10.62, 10.63)))
    ),
    Compared("8B shape, first token of a prompt of 2,048", "lessons/h200", "length", f"{SHAPE}, prompt 2048, ", "ms", 48.6, 50.5),
    Compared("8B shape, 256 requests, prompts of 64, 256 and 512, 128 new tokens each", "h200", "serving throughput",
             f"{SHAPE}, mixed-prompts, {ALL_AT_ONCE}", "tokens/s", 10_600, 10_642),
    Compared("1B shape, the same requests", "h200", "serving throughput",
             f"{SMALL}, mixed-prompts, {ALL_AT_ONCE}", "tokens/s", 36_800, 40_000),
    Compared("8B shape, nano-vllm's 256 requests of 100 to 1,024 tokens", "h200", "serving throughput",
             f"{SHAPE}, nano-vllm, {ALL_AT_ONCE}", "tokens/s", 9_915, 9_972),
    Compared("1B shape, nano-vllm's 256 requests", "h200", "serving throughput",
             f"{SMALL}, nano-vllm, {ALL_AT_ONCE}", "tokens/s", 31_700, 34_400),
)  # fmt: skip
HEADER = "| | vLLM 0.22.0 | vLLM 0.25.1 | minllm | minllm's speed over the better of the two |\n| --- | ---: | ---: | ---: | ---: |"


def frameworks_table(records: dict[str, dict]) -> str:
    """The rows that `records`, {"h200": ..., "lessons/h200": ...}, hold; the best variant of each, with its machine, date and commit."""
    lines, sources = [HEADER], {}
    for compared in COMPARED:
        record = records[compared.record]
        rows = [row for row in record["rows"] if row["benchmark"] == compared.benchmark and row["case"].startswith(compared.case)]
        rows = [row for row in rows if row["unit"] == compared.unit and row["variant"] not in ("static",)]
        if compared.benchmark == "length":
            rows = [row for row in rows if row["variant"] == "first token"]
        if rows:
            best = (max if compared.is_rate else min)(rows, key=lambda row: row["value"])
            lines.append(line(compared, best["value"]))
            sources[source(record, best)] = None
    return "\n".join([*lines, "", f"minllm: {'; '.join(sources)}."])


def line(compared: Compared, ours: float) -> str:
    """One row of the table."""
    theirs = (max if compared.is_rate else min)(compared.vllm_0_22, compared.vllm_0_25)
    ratio = ours / theirs if compared.is_rate else theirs / ours
    cells = " | ".join(f"{number(value)} {compared.unit}" for value in (compared.vllm_0_22, compared.vllm_0_25, ours))
    return f"| {compared.name} | {cells} | {ratio:.2f} |"


def number(value: float) -> str:
    """Three significant digits, thousands in full."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def source(record: dict, row: dict) -> str:
    """Where and when a row was measured."""
    return f"{record['device']}, {row.get('earlier') or record['date'] + ', commit ' + record['commit'][:7]}"
