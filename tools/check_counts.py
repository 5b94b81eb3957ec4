"""Compare the simulator's counts with the GPU's: Nsight Compute's counters of the same launches.

    python tools/check_counts.py                      simulate, launch under ncu, compare, write docs/results/h200_counts.json
    python tools/check_counts.py --results FOLDER     write elsewhere
    python tools/check_counts.py --simulate-only      the simulator's side alone; needs no GPU

A row is a kernel and one of four counts, which may differ by 2 %:

    sectors loaded, sectors stored    32-byte sectors of global memory, as looked up in L1; cp.async counts as loads
    conflicts of loads, of stores     shared-memory cycles beyond those that a request needs anyway. ldmatrix and cp.async have
                                      their own counters here. Counters named sass use instructions that ncu adds to the kernel.

The simulator counts what the source says. If a compiler merges two accesses (neighbouring elements that one thread stores, or a
number that it loads twice), the hardware counts less, so the kernels here are explicit about what they move at a time.

Cycles can also be lost to other instructions in the same cycle, which the simulator does not model and the counter includes: every
case is launched three times, and the least of the three counts is used. Counts that ncu measures with added instructions are recorded
under "counters". A counter that this ncu does not know, or reports no number for, is "not measured"; so is its row if the comparison
then stays open. Exit code 1 if a row differs or a kernel has no counts, 2 if ncu or a GPU is missing or ncu may not read the counters.
"""

import argparse
import datetime
import json
import sys
from dataclasses import asdict
from pathlib import Path

import ml_dtypes
import numpy as np
from numba import cuda, float32

from minllm.bench.counts_table import counts_table
from minllm.bench.hardware_counters import compared, find_ncu, least_of_rounds, ncu_version, parse, profile
from minllm.bench.record import file_name
from minllm.kernels.activation.silu import silu_and_multiply
from minllm.kernels.attention.split_kv import split_kv
from minllm.kernels.embedding.lookup import embedding
from minllm.kernels.kv.ladder.append import append
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from minllm.kernels.matmul.gemv.gemv import GemvTiling, matmul_gemv
from minllm.kernels.matmul.ladder.naive import matmul_naive
from minllm.kernels.matmul.ladder.tiled import matmul_tiled
from minllm.kernels.matmul.tensor_core import TensorCoreTiling, matmul_tensor_core
from minllm.kernels.normalization.rms_norm import rms_norm
from minllm.runtime.device import check_driver, current_device, is_available
from minllm.runtime.kernel import kernel, launch
from minllm.runtime.memory import to_device
from minllm.sim import tracing

ROOT = Path(__file__).resolve().parents[1]
BFLOAT16 = ml_dtypes.bfloat16
COMMAND = "python tools/check_counts.py"
ROUNDS = 3


# The launches. `put` makes a kernel argument from a NumPy array: unchanged for the simulator, a copy for the GPU.


@kernel
def turn_tile_kernel(x, out):
    """A tile transposed through shared memory without padding, to cause conflicts: x, out [32, 32], one warp per row of x."""
    tile = cuda.shared.array((32, 32), float32)
    column, row = cuda.threadIdx.x, cuda.threadIdx.y
    tile[column, row] = x[row, column]  # 32 words of one bank
    cuda.syncthreads()
    out[column, row] = tile[row, column // 2 * 2] + tile[column, row]  # no conflict, then 32 words of one bank; stores far apart


def numbers(put, *shape, dtype=BFLOAT16):
    """Random numbers, always the same."""
    return put(np.random.default_rng(0).standard_normal(shape).astype(dtype))


def indices(put, *values):
    """A one-dimensional int32 array."""
    return put(np.array(values, np.int32))


def run_turn_tile(put):
    launch(turn_tile_kernel, 1, (32, 32), (numbers(put, 32, 32, dtype=np.float32), numbers(put, 32, 32, dtype=np.float32)))


def run_rms_norm(put):
    rms_norm(numbers(put, 3, 2048), numbers(put, 2048), numbers(put, 3, 2048), 1e-5, numbers(put, 3, 2048))


def run_embedding(put):
    embedding(indices(put, 5, 1, 0), numbers(put, 7, 264), numbers(put, 3, 264))


def run_silu(put):
    silu_and_multiply(numbers(put, 3, 2 * 520), numbers(put, 3, 520))


def run_qkv_rope_append(put):
    heads, kv_heads, head_dim = 4, 2, 64
    caches = [numbers(put, 2, 4, kv_heads, head_dim) for _ in range(2)]
    norms = [numbers(put, head_dim) for _ in range(2)]
    qkv, query, table = (3, (heads + 2 * kv_heads) * head_dim), (3, heads, head_dim), numbers(put, 8, head_dim, dtype=np.float32)
    places = indices(put, 0, 3, 1), indices(put, 5, 0, 2)
    qkv_rope_append(numbers(put, *qkv), *places, *caches, numbers(put, *query), table, False, *norms)


def run_append(put):
    keys = [numbers(put, 3, 2, 64) for _ in range(2)]
    caches = [numbers(put, 2, 4, 2, 64) for _ in range(2)]
    append(*keys, *caches, indices(put, 6, -1, 1))


def run_product(multiply, m, n, k, dtype=BFLOAT16, **chosen):
    """The run of a GEMM: x [m, k], weight [n, k]."""
    return lambda put: multiply(numbers(put, m, k, dtype=dtype), numbers(put, n, k, dtype=dtype), numbers(put, m, n, dtype=dtype), **chosen)


def run_split_kv(put):
    context, heads, kv_heads, head_dim = 128, 4, 2, 64
    caches = [numbers(put, 8, 16, kv_heads, head_dim) for _ in range(2)]
    lens = indices(put, 0, 1), indices(put, context), put(np.arange(8, dtype=np.int32)[None, ::-1].copy())
    query, out = (numbers(put, 1, heads, head_dim) for _ in range(2))
    scratch = split_kv.workspace_shapes(query, caches[0], lens[2], splits=2)
    workspace = {name: numbers(put, *shape, dtype=np.dtype(dtype)) for name, (shape, dtype) in scratch.items()}
    split_kv.attention(query, *caches, out, *lens, 0.125, splits=2, workspace=workspace)


CASES = {
    "turn a tile": run_turn_tile,
    "rms_norm": run_rms_norm,
    "embedding": run_embedding,
    "silu_and_multiply": run_silu,
    "qkv_rope_append": run_qkv_rope_append,
    "append": run_append,
    "matmul naive": run_product(matmul_naive, 17, 18, 24),
    "matmul tiled": run_product(matmul_tiled, 32, 48, 24, np.float32, tile=(16, 4, 4)),
    "matmul tensor_core": run_product(matmul_tensor_core, 64, 96, 64, tiling=TensorCoreTiling(32, 32, 32, 1, 2, 3)),
    "matmul gemv": run_product(matmul_gemv, 3, 8, 520, tiling=GemvTiling(rows=2, warps=2, unroll=2)),
    "attention split_kv": run_split_kv,
}


def counts_of(trace):
    """The four counts of a Trace, named as in COUNTS."""
    arrays, shared = trace.arrays.values(), trace.shared
    return {
        "sectors loaded": sum(array.read.sectors for array in arrays),
        "sectors stored": sum(array.write.sectors for array in arrays),
        "conflicts of loads": sum(line.conflicts for line in shared if line.kind == "read"),
        "conflicts of stores": sum(line.conflicts for line in shared if line.kind == "write"),
    }


def simulated():
    """(case, kernel, its counts) of every launch of every case, in order."""
    found = []
    for case, run in CASES.items():
        with tracing() as traces:
            run(lambda host: host)
        found += [(case, trace.kernel, counts_of(trace)) for trace in traces]
    return found


def launch_all(rounds=1):
    """Run every case on the GPU, `rounds` times."""
    from cuda.bindings import driver

    for case in list(CASES.values()) * rounds:
        case(to_device)
    check_driver(driver.cuCtxSynchronize(), "run the kernels")


def show(rows):
    """Print the rows as a table."""
    print(f"{'case':<20} {'kernel':<33} {'count':<20} {'simulator':>10} {'hardware':>12} {'ratio':>7}", flush=True)
    for row in rows:
        hardware = "not measured" if row.hardware is None else f"{row.hardware:,.0f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        words = f"{row.case:<20} {row.kernel:<33} {row.count:<20} {row.simulator:>10,} {hardware:>12} {ratio:>7}"
        print(words + ("  DIFFERS" if row.agrees is False else ""), flush=True)


def main():
    """Return 0 if all measured rows agree, 1 if something differs or was not counted, 2 if this cannot run here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results", help="the folder to write into; default: docs/results")
    parser.add_argument("--simulate-only", action="store_true", help="print the simulator's counts, and compare nothing")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)  # the command that ncu runs
    options = parser.parse_args()
    if options.launch:
        launch_all(ROUNDS)
        return 0
    if options.simulate_only:
        show(compared(simulated(), [])[0])
        return 0
    ncu = find_ncu()
    if ncu is None:
        print("ncu was not found: install Nsight Compute, and put it on the PATH", file=sys.stderr)
        return 2
    if not is_available():
        print("no usable NVIDIA GPU was found: this check runs kernels on one; `minllm doctor` shows what is missing", file=sys.stderr)
        return 2
    return check(ncu, options.results)


def check(ncu, results):
    """Simulate, measure, compare and write; the exit code of `main`."""
    launches = simulated()
    print(f"{len(launches)} kernels simulated", flush=True)
    launch_all()  # fills the disk cache, so that ncu does not wait for the compiler
    code, output = profile(ncu, [sys.executable, str(Path(__file__).resolve()), "--launch"])
    hardware = least_of_rounds(parse(output), ROUNDS)
    if not hardware:
        print(output[-8000:], f"ncu counted nothing (exit code {code}): see its words above", sep="\n", file=sys.stderr)
        return 2
    rows, counters = compared(launches, hardware)
    show(rows)
    device = current_device().name
    head = dict(device=device, date=datetime.date.today().isoformat(), command=COMMAND, ncu=ncu_version(ncu))
    tables = {"rows": [asdict(row) for row in rows], "counters": counters}
    lines = {name: ",\n  ".join(map(json.dumps, entries)) for name, entries in tables.items()}
    body = "".join(f',\n "{name}": [\n  {text}\n ]' for name, text in lines.items())
    results.mkdir(parents=True, exist_ok=True)
    path = results / file_name(device).replace(".json", "_counts.json")
    path.write_text(json.dumps(head, indent=1).removesuffix("\n}") + body + "\n}\n", encoding="utf-8")
    uncounted = sorted({entry["kernel"] for entry in counters if not any(value is not None for value in entry["counters"].values())})
    if uncounted or code != 0:
        words = f"ncu's exit code is {code}; kernels without counts: {', '.join(uncounted) or 'none'}"
        print(output[-4000:], words, sep="\n", file=sys.stderr)
    print(path, flush=True)
    print(counts_table(json.loads(path.read_text(encoding="utf-8"))), flush=True)
    return int(code != 0 or bool(uncounted) or any(row.agrees is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
