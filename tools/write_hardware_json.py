"""Write the data of the site's calculators and `minllm plan`: GPUs, models and measurements.

    minllm/data/measurements.json               from docs/results: ceilings, and the times of whole models and all-reduces, by GPU
    docs/assets/javascripts/hardware.json       data sheets, shapes of models/shapes.py, measured kernels and steps

Run it after `python tools/record.py` and after a change of either table; a test detects a missing run.
"""

import argparse
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from minllm.catalogue.attention.benchmarks import key_value_bytes, prefill_flops
from minllm.catalogue.matmul.products import matmul_bytes, matmul_flops
from minllm.costs.measured_all_reduces import KERNELS, NCCL, SEQUENCE_PARALLEL, SIZES, measured_times
from minllm.kernels.all_reduce.choice import choose

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
MEASUREMENTS = ROOT / "minllm" / "data" / "measurements.json"
HARDWARE = ROOT / "docs" / "assets" / "javascripts" / "hardware.json"
RUN = re.compile(r"(?P<model>\S+)(?: \(random weights\))?, batch 1, prompt (?P<prompt>\d+), new (?P<new>\d+)")

STEP = re.compile(r"(?P<model>\S+) \(random weights\), (batch (?P<batch>\d+), context )?(?P<context>\d+)( tokens)?")
SPLITS = re.compile(
    r"(?P<sequences>\d+)x(?P<context>\d+), (?P<heads>\d+)/(?P<kv_heads>\d+) heads, d (?P<head_dim>\d+), bfloat16, (?P<splits>\d+) splits"
)
ALL_REDUCE = re.compile(r"(?P<ranks>\d+) GPUs, (?P<size>\d+) (?P<unit>KiB|MiB), bfloat16")
WHOLE_STEPS = {("decode step", "graph replay"): "decode", ("whole prefill", "bfloat16"): "prefill"}


def records() -> list[dict]:
    """The records of GPUs."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    return [record for record in found if record.get("ceilings") and not record["device"].startswith("cpu")]


def measurement(record: dict) -> dict:
    """Ceilings and whole-model runs of one record; date and commit are those of the runs."""
    values = {(row["benchmark"], row["case"], row["variant"]): row["value"] for row in record["rows"]}
    runs = []
    for (benchmark, case, dtype), rate in values.items():
        match = RUN.fullmatch(case)
        if benchmark == "decode" and match:
            first = values["time to first token", case, dtype]
            lengths = dict(prompt=int(match["prompt"]), new=int(match["new"]))
            runs.append(dict(model=match["model"], dtype=dtype, **lengths, decode_ms=round(1e3 / rate, 4), first_token_ms=first))
    run = next((row for row in record["rows"] if row["benchmark"] == "decode"), record)
    return dict(date=run["date"], commit=run["commit"], **record["ceilings"], runs=runs)


def all_reduces() -> dict[str, dict]:
    """{device: {number of GPUs: {"nccl" or another: {bytes: microseconds}}}} of all records; "kernels": what is chosen for the size."""
    rows, found = {}, {}
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        matches = [(ALL_REDUCE.fullmatch(row["case"]), row) for row in record["rows"] if row.get("benchmark") == "all-reduce"]
        rows |= {(record["device"], int(one["ranks"]), message_bytes(one), row["variant"]): row for one, row in matches if one}
    for (device, ranks, size, variant), row in rows.items():
        times = found.setdefault(device, {}).setdefault(str(ranks), {NCCL: {}, KERNELS: {}})
        if variant == SEQUENCE_PARALLEL:
            times.setdefault(SEQUENCE_PARALLEL, {})[str(size)] = row["value"]
            continue
        times[NCCL][str(size)] = row["peer_value"]
        if variant == choose(ranks, size):
            times[KERNELS][str(size)] = row["value"]
        elif choose(ranks, size) is None:
            times[KERNELS][str(size)] = row["peer_value"]
    return found


def message_bytes(match: re.Match) -> int:
    """The size in the name of a case."""
    return int(match["size"]) * {"KiB": 1 << 10, "MiB": 1 << 20}[match["unit"]]


def measurements_text() -> str:
    """The content of measurements.json."""
    found, links = {record["device"]: measurement(record) for record in records()}, all_reduces()
    return json.dumps({name: one | {"all_reduces": links.get(name, {})} for name, one in found.items()}, indent=1) + "\n"


def measured_kernels() -> list[dict]:
    """The kernels of the records for a roofline, GEMM and attention in bfloat16: intensity in FLOPs per byte, and TFLOP/s."""
    shown = []
    for record in records():
        for row in record["rows"]:
            sizes, of_bfloat16, _ = row["case"].partition(", bfloat16")
            flops, moved = work(row["benchmark"], [int(number) for number in re.findall(r"\d+", sizes)]) if of_bfloat16 else (0, 0)
            if not moved:
                continue
            intensity = flops / moved
            tflops = row["value"] * (intensity if row["unit"] == "TB/s" else 1)
            place = dict(gpu=record["device"], date=row["date"], commit=row["commit"][:7], stage=row["benchmark"])
            kernel = dict(case=row["case"].replace(", bfloat16", ""), variant=row["variant"])
            shown.append(dict(place, **kernel, intensity=round(intensity, 4), tflops=round(tflops, 4)))
    return shown


def measured_steps() -> list[dict]:
    """The decode steps and whole prefills of the records, by the model's shape, with random weights in bfloat16: milliseconds."""
    shown = []
    for record in records():
        for row in record["rows"]:
            match = STEP.fullmatch(row["case"])
            if not match or (row["benchmark"], row["variant"]) not in WHOLE_STEPS:
                continue
            phase, batch = WHOLE_STEPS[row["benchmark"], row["variant"]], int(match["batch"] or 1)
            context, run = int(match["context"]), dict(gpu=record["device"], date=row["date"], commit=row["commit"][:7])
            milliseconds = row["value"] / {"µs": 1e3, "ms": 1}[row["unit"]]
            shown.append(dict(run, model=match["model"], phase=phase, batch=batch, context=context, ms=round(milliseconds, 4)))
    return sorted(shown, key=lambda step: (step["gpu"], step["model"], step["phase"], step["context"], step["batch"]))


def measured_splits() -> list[dict]:
    """The rates of split_kv over one context by the number of its splits, in TB/s."""
    shown = []
    for record in records():
        for row in record["rows"]:
            match = SPLITS.fullmatch(row["case"])
            if row["benchmark"] == "splits" and row["variant"] == "split_kv" and match:
                run = dict(gpu=record["device"], date=row["date"], commit=row["commit"][:7])
                sizes = {name: int(number) for name, number in match.groupdict().items()}
                shown.append(dict(run, **sizes, tb_s=row["value"]))
    return shown


def work(benchmark: str, sizes: list[int], item: int = 2) -> tuple[int, int]:
    """FLOPs and bytes of a case with those numbers in its name, both 0 for other benchmarks."""
    if benchmark == "matmul":
        return matmul_flops(*sizes), matmul_bytes(*sizes, item)
    if benchmark == "prefill attention":
        sequences, tokens, heads, kv_heads, head_dim = sizes
        read = key_value_bytes(sequences, tokens, kv_heads, head_dim, item)
        return prefill_flops(sequences, tokens, heads, head_dim), read + 2 * item * sequences * tokens * heads * head_dim
    if benchmark == "decode attention":
        sequences, context, heads, kv_heads, head_dim = sizes
        return 4 * heads * head_dim * sequences * context, key_value_bytes(sequences, context, kv_heads, head_dim, item)
    return 0, 0


def hardware_text() -> str:
    """The content of hardware.json."""
    from minllm.machine.hardware import GPUS
    from minllm.models.shapes import SHAPES, shape_values
    from minllm.planning.formats import kv_format_tables, weight_format_tables

    tables = dict(
        gpus={name: asdict(gpu) | nccl_table(gpu.short_name) for name, gpu in GPUS.items()},
        weight_formats=weight_format_tables(),
        kv_formats=kv_format_tables(),
        presets={name: shape_values(name) for name in (*SHAPES, "bundled")},
        measured_kernels=measured_kernels(),
        measured_steps=measured_steps(),
        measured_splits=measured_splits(),
    )
    parts = [f' "{name}": ' + one_a_line(table) for name, table in tables.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def nccl_table(gpu: str) -> dict:
    """The measured all-reduces of NCCL between GPUs of this short name, if there are any."""
    of_ranks = {ranks: times[NCCL] for (name, ranks), times in sorted(measured_times().items()) if name == gpu}
    if not of_ranks:
        return {}
    return {"nccl": dict(sizes=SIZES, microseconds={ranks: [times[size] for size in SIZES] for ranks, times in of_ranks.items()})}


def one_a_line(table: dict | list) -> str:
    """JSON with one entry per line, so that diffs are readable."""
    if isinstance(table, list):
        return "[\n" + ",\n".join("  " + json.dumps(entry) for entry in table) + "\n ]"
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in table.items()) + "\n }"


def main() -> None:
    """Write both files, the second by a process that has read the new measurements: minllm keeps those of its import."""
    text = measurements_text()
    if MEASUREMENTS.read_text(encoding="utf-8") != text:
        MEASUREMENTS.write_text(text, encoding="utf-8")
        subprocess.run([sys.executable, __file__], check=True)
        return
    HARDWARE.write_text(hardware_text(), encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
