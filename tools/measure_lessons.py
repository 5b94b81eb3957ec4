"""Measure the lessons' own figures, beyond the benchmarks, for tools/record.py. Needs a GPU.

python tools/measure_lessons.py                             everything, printed
python tools/measure_lessons.py --only copy --json FILE     one part, also written as a record

copy        a float32 matrix copied with warps along its rows, and down its columns: the cost of uncoalesced accesses
cache       a GEMV whose matrix fits the L2 cache, with the same matrix each time, and with many matrices in turn
splits      decode attention of one sequence of 8,192 keys by split_kv, for several numbers of splits, and by split_tensor_core's own plan
length      milliseconds to the first token of an 8B shape for prompts of several lengths, and of a decode step after each
"""

import argparse
import functools
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from minllm.bench.ceilings import copy_tb_s
from minllm.bench.generate import write_shape
from minllm.bench.kernel_case import BFLOAT16, rounded
from minllm.bench.record import Row, new_record, write_json
from minllm.bench.timing import CudaClock, input_sets, median_seconds
from minllm.catalogue.noise import Noise
from minllm.course.copies import copy
from minllm.engine.llm import LLM
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.matmul.gemv.gemv import matmul_gemv
from minllm.models.shapes import SHAPES
from minllm.ops.cuda_ops import CudaOps
from minllm.runtime.device import current_device

SIDE = 16384  # side of the copied matrix: 1 GiB in float32
MODEL = "llama-3.1-8b"
NEW, REPEATS = 33, 3
SPLITS = (1, 4, 16, 32, 48, 49, 56, 128)
LENGTHS = (64, 512, 4096)


def copy_rows(ops: CudaOps, clock: CudaClock) -> Iterator[Row]:
    """Both ways to copy a matrix, in TB/s read plus written."""
    x = ops.array(np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32))
    out = ops.empty((SIDE, SIDE), np.float32)
    for variant, by_columns in (("by rows", False), ("by columns", True)):
        seconds = median_seconds([lambda down=by_columns: copy(x, out, down, ops.stream)], clock)
        if not np.array_equal(ops.to_host(out[:2]), ops.to_host(x[:2])):
            raise ValueError(f"the copy {variant} is wrong")
        yield Row("copy", f"{SIDE}x{SIDE}, float32", variant, rounded(2 * x.nbytes / seconds / 1e12), "TB/s")


def cache_rows(ops: CudaOps, clock: CudaClock, cache_bytes: int) -> Iterator[Row]:
    """One GEMV, timed in the wrong way and in the right one, in TB/s of the weight."""
    noise, side = Noise(), 4096
    weight_bytes = BFLOAT16.itemsize * side * side
    x, out = ops.array(noise.array((1, side), BFLOAT16)), ops.empty((1, side), BFLOAT16)
    weights = [ops.array(noise.array((side, side), BFLOAT16)) for _ in range(input_sets(weight_bytes, cache_bytes))]
    for variant, used in (("one matrix again and again", weights[:1]), ("many matrices in turn", weights)):
        launches = [lambda weight=weight: matmul_gemv(x, weight, out, stream=ops.stream) for weight in used]
        yield Row("cache", f"1x{side}x{side}, bfloat16", variant, rounded(weight_bytes / median_seconds(launches, clock) / 1e12), "TB/s")


def splits_rows(ops: CudaOps, clock: CudaClock, cache_bytes: int) -> Iterator[Row]:
    """TB/s of keys and values; sets of arrays in turn, so that none is in the cache."""
    noise, keys, heads, kv_heads, head_dim, block = Noise(), 8192, 32, 8, 128, 16
    table = noise.random.permutation(keys // block).astype(np.int32)[None]
    query = noise.array((1, heads, head_dim), BFLOAT16)
    cache = noise.array((2, keys // block, block, kv_heads, head_dim), BFLOAT16)
    batch = [ops.array(array) for array in (np.int32([0, 1]), np.int32([keys]), table)]
    out = ops.empty(query.shape, query.dtype)
    sets = [[ops.array(query), *(ops.array(half) for half in cache), out, *batch] for _ in range(input_sets(cache.nbytes, cache_bytes))]
    for variant, splits in (*(("split_kv", number) for number in SPLITS), ("split_tensor_core", None)):
        module = VARIANTS[variant]
        workspace = make_workspace(module.workspace_shapes(query, cache[0], table, splits), ops.empty, ops.zeros)
        options = dict(max_query_len=1, splits=splits, workspace=workspace, stream=ops.stream)
        launches = [functools.partial(module.attention, *arrays, head_dim**-0.5, **options) for arrays in sets]
        case = f"1x{keys}, {heads}/{kv_heads} heads, d {head_dim}, bfloat16, {splits or 'own'} splits"
        yield Row("splits", case, variant, rounded(cache.nbytes / median_seconds(launches, clock) / 1e12), "TB/s")


def timed_ms(llm: LLM, length: int) -> tuple[float, float]:
    """Milliseconds to the first token and per decode step, for a random prompt of `length` tokens: medians after a warm-up."""
    prompt = np.random.default_rng(0).integers(0, llm.engine.model.config.vocab_size, length).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    llm.generate(prompt, params)
    runs = [llm.generate(prompt, params)[0].metrics for _ in range(REPEATS)]
    first, decode = (statistics.median(getattr(run, name) for run in runs) for name in ("time_to_first_token", "decode_seconds"))
    return 1e3 * first, 1e3 * decode / (NEW - 1)


def length_rows() -> Iterator[Row]:
    """Prefill and decode steps by length."""
    options = dict(load_format="dummy", device="cuda", dtype="bfloat16", max_model_len=max(LENGTHS) + NEW)
    with tempfile.TemporaryDirectory() as directory:
        write_shape(Path(directory), SHAPES[MODEL])
        with LLM(directory, **options) as llm:
            for length in LENGTHS:
                case = f"{MODEL} (random weights), prompt {length}, new {NEW}"
                for variant, milliseconds in zip(("first token", "decode step"), timed_ms(llm, length), strict=True):
                    yield Row("length", case, variant, rounded(milliseconds), "ms")


def main() -> int:
    """Measure everything, or a part, and write the record, anew after each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=("copy", "cache", "splits", "length"), help="may be repeated")
    parser.add_argument("--json", type=Path, help="the file to write the record into")
    options = parser.parse_args()
    device, ops, clock = current_device(), CudaOps(), CudaClock()
    ceilings = {"copy_tb_s": round(copy_tb_s(), 3), "bf16_tflops": None}
    parts = {
        "copy": lambda: copy_rows(ops, clock),
        "cache": lambda: cache_rows(ops, clock, device.l2_bytes),
        "splits": lambda: splits_rows(ops, clock, device.l2_bytes),
        "length": length_rows,
    }
    rows = []
    for name in options.only or parts:
        for row in parts[name]():
            rows.append(row)
            print(f"{row.benchmark:8} {row.case:60} {row.variant:28} {row.value:10,.4g} {row.unit}", flush=True)
        if options.json:
            write_json(options.json, new_record(device.name, ceilings, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
