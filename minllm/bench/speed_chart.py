"""The chart of the README and of the site's first page: minllm's speed over that of cuBLAS, cuDNN and vLLM, from docs/results/h200.json.

Libraries were measured in the same run as minllm's kernels. vLLM ran on another machine of the same kind (`frameworks_table`), so it is
compared only in whole serving runs, which include the host's work on both sides.
"""

from minllm.bench.frameworks_table import COMPARED, Compared, recorded_row
from minllm.bench.record import origin
from minllm.bench.results_table import HEADS
from minllm.figures.bars import Bar, bars
from minllm.figures.figure import WIDE, Figure

# (benchmark, case, variant, name) of kernels compared with cuBLAS and cuDNN
KERNELS = (
    ("matmul", "8192x8192x8192, bfloat16", "wgmma", "GEMM, 8,192 cubed"),
    ("matmul", "2048x28672x4096, bfloat16", "wgmma", "GEMM, 2,048 tokens of 8B"),
    ("matmul", "64x4096x14336, bfloat16", "flat", "GEMM, 64 tokens of 8B"),
    ("matmul", "1x4096x14336, bfloat16", "gemv", "GEMV, 1 token of 8B"),
    ("prefill attention", f"4x4096, {HEADS}", "flash_attention_3", "prefill attention, 4 x 4,096"),
    ("decode attention", f"1x1024, {HEADS}", "split_tensor_core", "decode attention, 1 x 1,024"),
    ("decode attention", f"64x4096, {HEADS}", "split_tensor_core", "decode attention, 64 x 4,096"),
)
SERVING = {
    "8B shape, 256 requests x 128 tokens": "serving 256 requests, 8B",
    "1B shape, 256 requests x 128 tokens": "serving 256 requests, 1B",
}
COLOURS = {"cuBLAS": 0, "cuDNN": 2, "vLLM": 1}


def speed_chart(record: dict) -> Figure:
    """Bars of the ratios of speeds, with a line at 1."""
    found = [kernel_bar(record, *wanted) for wanted in KERNELS]
    found += [serving_bar(record, compared) for compared in COMPARED if compared.name in SERVING]
    return bars(
        [bar for bar, _ in found],
        unit="x",
        title="Speed of minllm over cuBLAS, cuDNN and vLLM",
        limit=1.0,
        limit_name="equally fast:",
        caption=caption(record, [row for _, row in found]),
        width=WIDE,
    )


def kernel_bar(record: dict, benchmark: str, case: str, variant: str, name: str) -> tuple[Bar, dict]:
    """(the bar of a kernel, its row)."""
    row = next(row for row in record["rows"] if (row["benchmark"], row["case"], row["variant"]) == (benchmark, case, variant))
    library = row["peer"].split()[-1]
    remark = f"{library} {row['peer_value']:.3g}, ours {row['value']:.3g} {row['unit']}"
    return Bar(name, round(row["ratio"], 2), remark, COLOURS[library]), row


def serving_bar(record: dict, compared: Compared) -> tuple[Bar, dict]:
    """(the bar of a whole serving run, its row)."""
    row = recorded_row(record, compared)
    fastest = max(compared.vllm_0_22, compared.vllm_0_25)
    remark = f"vLLM {fastest:,.0f}, ours {row['value']:,.0f} tokens/s"
    return Bar(SERVING[compared.name], round(row["value"] / fastest, 2), remark, COLOURS["vLLM"]), row


def caption(record: dict, rows: list[dict]) -> str:
    """Machine, dates and commits of the rows."""
    runs = dict.fromkeys(f"{row['date']}, commit {row['commit'][:7]}" for row in rows)
    older = any("older" in origin(row, record) for row in rows)
    return (
        f"One {record['device']}, bfloat16, {' and '.join(runs)}, by python tools/record.py. cuBLAS and cuDNN ran in the same process, "
        "the faster of vLLM 0.22 and 0.25.1 on another machine of this kind." + (" Some kernels have changed since." if older else "")
    )
