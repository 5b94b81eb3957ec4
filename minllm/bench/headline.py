"""The README's seven rows: one run on one card, docs/assets/speed.json. The README's table, its chart and the site's first page show them.

`python tools/record.py` measures them with the rest of the record, PyTorch's kernels in the same processes. vLLM is measured elsewhere
(frameworks_table), on one kind of card, so it is shown only beside runs on that kind, and only for whole serving runs, which include the
host's work on both sides. TensorRT-LLM's figure is NVIDIA's own, published for that kind of card.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from minllm.bench.frameworks_table import COMPARED, VLLM_DATE, VLLM_DEVICE, is_row_of, recorded_row
from minllm.bench.results_table import HEADS, number, share

COMMAND = "python tools/record.py"
Run = Mapping[str, Any]  # a record, as in minllm.bench.record


class Wanted(NamedTuple):
    """A measurement: its name in the chart, benchmark, the beginning of its case, and variant (None: any)."""

    bar: str
    benchmark: str
    case: str
    variant: str | None = None


def served(size: str) -> Wanted:
    """The serving run of a model's size that `frameworks_table` compares with vLLM."""
    compared = next(one for one in COMPARED if one.name == f"{size} shape, 256 requests x 128 tokens")
    return Wanted(f"serving 256 requests, {size}", compared.benchmark, compared.case)


LARGE = "llama-3.1-8b (random weights)"
FP8_LIST = f"{LARGE}, tensorrt-llm-128-128, 1024 requests, weights in fp8, KV cache in fp8_e4m3"
TENSORRT_LLM = 27_911  # output tokens/s of that list on one H200, by its performance page
INT4_ROW = "1 row x 28672x4096, int4 in groups of 128"
# {row of the table: its measurements}
HEADLINE = {
    "decode step, Llama 3.1 8B, batch 1, context 1,024": (
        Wanted("decode step, 8B", "decode step", f"{LARGE}, batch 1, context 1024", "graph replay"),
    ),
    "serving 256 requests x 128 tokens, 8B · 1B": (served("8B"), served("1B")),
    "serving 1,024 requests x 128 tokens, 8B in fp8": (Wanted("serving in fp8, 8B", "serving throughput", FP8_LIST),),
    "prefill of 2,048 tokens, Llama 3.1 8B": (Wanted("prefill of 2,048 tokens, 8B", "whole prefill", f"{LARGE}, 2048 tokens", "bfloat16"),),
    "GEMM, 8192 x 8192 x 8192": (Wanted("GEMM, 8,192 cubed", "matmul", "8192x8192x8192, bfloat16", "wgmma"),),
    "decode attention, 64 sequences x 4,096 keys": (
        Wanted("decode attention, 64 x 4,096", "decode attention", f"64x4096, {HEADS}", "split_tensor_core"),
    ),
    "int4 GEMV, 28672 x 4096": (Wanted("int4 GEMV, 28672 x 4096", "matmul, quantised", INT4_ROW, "tensor_core_gemv"),),
}
LIMIT = "The limit is the rate of a copy, which kernels that only read exceed by up to 4 %, or cuBLAS's rate at 8192 x 8192 x 8192."
HEADER = "| | minllm | of the limit | peer | minllm's speed over the peer's |\n| --- | ---: | ---: | --- | ---: |"


def found(run: Run, wanted: Wanted) -> dict | None:
    """The run's row for a measurement, the fastest of its variants, beside vLLM if that was measured; None if the run has no such row."""
    rows = [row for row in run["rows"] if is_row_of(row, wanted)]
    if not rows:
        return None
    row = max(rows, key=lambda one: one["value"]) if wanted.variant is None else rows[0]
    peer = engine_beside(row)
    if peer is None or run["device"] != VLLM_DEVICE:
        return row
    name, rate = peer
    return {**row, "peer": name, "peer_value": rate, "ratio": row["value"] / rate}


def engine_beside(row: Mapping[str, Any]) -> tuple[str, float] | None:
    """(name, tokens per second) of the engine that a serving run is compared with; None for other rows."""
    if row["case"].startswith(FP8_LIST):
        return "TensorRT-LLM, published", TENSORRT_LLM
    compared = next((one for one in COMPARED if one.is_rate and recorded_row({"rows": [row]}, one)), None)
    if compared is None:
        return None
    version, rate = compared.fastest
    return f"vLLM {version}", rate


def rows_of(run: Run) -> dict[str, list[tuple[Wanted, dict]]]:
    """{row of the table: its measurements that the run has}; rows without any are left out."""
    every = {name: [(one, row) for one in wanted if (row := found(run, one))] for name, wanted in HEADLINE.items()}
    return {name: rows for name, rows in every.items() if rows}


def headline_rows(run: Run) -> list[dict]:
    """The rows of a record that the README shows, as they were measured. Raises LookupError if one is missing."""
    wanted = [one for line in HEADLINE.values() for one in line]
    lacking = [one.bar for one in wanted if found(run, one) is None]
    if lacking:
        raise LookupError(f"the record has no row for {', '.join(lacking)}")
    return [row for row in run["rows"] if any(is_row_of(row, one) for one in wanted)]


def headline_table(run: Run) -> str:
    """The README's table, and a line below it with date, card and command."""
    lines = [line(name, [row for _, row in rows], run) for name, rows in rows_of(run).items()]
    return "\n".join([HEADER, *lines, "", f"{origin(run)} Peers of kernels ran in the same process. {LIMIT}"])


def line(name: str, rows: list[dict], run: Run) -> str:
    """One row of the table; several measurements stand side by side in it."""
    values = f"{joined(number(row['value']) for row in rows)} {rows[0]['unit']}"
    of_limit = joined(f"{100 * share(row, run):.0f} %" for row in rows if row["of_limit"])
    compared = [row for row in rows if row["ratio"]]
    peer = f"{compared[0]['peer']}: {joined(number(row['peer_value']) for row in compared)}" if compared else ""
    ratio = joined(f"{row['ratio']:.2f}" for row in compared)
    return f"| {name} | {values} | {of_limit} | {peer} | {ratio} |"


def joined(texts: Iterable[str]) -> str:
    """Texts side by side."""
    return " · ".join(texts)


def origin(run: Run) -> str:
    """Card, date and command of the run, and where vLLM was measured."""
    shown = [row for rows in rows_of(run).values() for _, row in rows]
    dates = sorted({row["date"] for row in shown})
    day = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    torch = f", PyTorch {run['packages']['torch']}" if "torch" in run["packages"] else ""
    words = [f"One {run['device']}, {day}{torch}, by `{COMMAND}`."]
    if any("vLLM" in (row["peer"] or "") for row in shown):
        words.append(f"vLLM: another {VLLM_DEVICE}, {VLLM_DATE}.")
    return " ".join(words)
