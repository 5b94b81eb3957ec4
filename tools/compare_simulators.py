"""Times five kernels in Numba's own simulator and in minllm's: `python tools/compare_simulators.py [--write]`.

CPU seconds of the first launch, and of the best of two after it, all in one run: each column is a process. --write puts the table into
docs/coming-from-cudasim.md.
"""

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from numba import cuda, float32

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-cudasim.md"
BEGIN, END = "<!-- simulators: begin -->\n", "<!-- simulators: end -->\n"
LAUNCHES = 2
TILE, SIDE, ROWS, COLUMNS = 16, 64, 16, 256


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def multiply(a, b, out):
    left, right = cuda.shared.array((TILE, TILE), float32), cuda.shared.array((TILE, TILE), float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, SIDE, TILE):
        left[y, x], right[y, x] = a[row, start + x], b[start + y, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[y, k] * right[k, x]
        cuda.syncthreads()
    out[row, column] = total


@cuda.jit
def tree_sum(x, out):
    part = cuda.shared.array(COLUMNS, float32)
    i = cuda.threadIdx.x
    part[i] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = COLUMNS // 2
    while step > 0:
        if i < step:
            part[i] += part[i + step]
        cuda.syncthreads()
        step //= 2
    if i == 0:
        cuda.atomic.add(out, 0, part[0])


@cuda.jit
def histogram(keys, counts):
    i = cuda.grid(1)
    if i < keys.size:
        cuda.atomic.add(counts, keys[i], 1)


@cuda.jit
def average_of_neighbours(x, out):
    column, row = cuda.grid(2)
    if 0 < row < x.shape[0] - 1 and 0 < column < x.shape[1] - 1:
        out[row, column] = (x[row - 1, column] + x[row + 1, column] + x[row, column - 1] + x[row, column + 1]) * float32(0.25)


def cases():
    """{what a launch does: (kernel, grid, block, arguments)}."""
    noise = np.random.default_rng(0)

    def normal(*shape):
        return noise.standard_normal(shape).astype(np.float32)

    square = (SIDE // TILE, SIDE // TILE), (TILE, TILE)
    keys = noise.integers(0, 64, 16_384).astype(np.int32)
    return {
        "sum of two vectors, 16,384 threads": (add, 64, 256, (normal(16_384), normal(16_384), np.zeros(16_384, np.float32))),
        "GEMM of 64x64x64, tiles in shared memory": (multiply, *square, (normal(SIDE, SIDE), normal(SIDE, SIDE), normal(SIDE, SIDE))),
        "sum by a tree, 16 blocks of 256": (tree_sum, ROWS, COLUMNS, (normal(ROWS * COLUMNS), np.zeros(1, np.float32))),
        "histogram, 16,384 atomics": (histogram, 64, 256, (keys, np.zeros(64, np.int32))),
        "stencil over 128x128": (average_of_neighbours, (8, 8), (TILE, TILE), (normal(128, 128), normal(128, 128))),
    }


def seconds():
    """{case: CPU seconds of (the first launch, the best of the others)}."""
    found = {}
    for name, (kernel, grid, block, arguments) in cases().items():
        times = []
        for _ in range(LAUNCHES + 1):
            start = time.process_time()
            kernel[grid, block](*arguments)
            times.append(time.process_time() - start)
        found[name] = times[0], min(times[1:])
    return found


def measured(environment):
    """`seconds` in a process of its own, in Numba's simulator or under these variables in minllm's."""
    done = subprocess.run([sys.executable, __file__, "--inside"], env=os.environ | environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def inside():
    """Print what this process measures."""
    with contextlib.ExitStack() as stack:
        if not os.environ.get("NUMBA_ENABLE_CUDASIM"):
            from minllm.sim import simulated_launches

            stack.enter_context(simulated_launches(detect=os.environ["MINLLM_SIM_DETECT"] == "1"))
        print(json.dumps(seconds()))


def table():
    """The table as Markdown."""
    columns = {"Numba's simulator": {"NUMBA_ENABLE_CUDASIM": "1"}}
    for engine in ("threads", "lanes"):
        for detect, name in (("0", ""), ("1", ", detecting")):
            columns[f"{engine}{name}"] = {"MINLLM_SIM_ENGINE": engine, "MINLLM_SIM_DETECT": detect}
    times = {name: measured(environment) for name, environment in columns.items()}
    lines = [f"| CPU seconds of a launch | {' | '.join(columns)} | first launch in lanes |", "| --- |" + " ---: |" * (len(columns) + 1)]
    for case, (first, _) in times["lanes"].items():
        numbers = *(of[case][1] for of in times.values()), first
        lines.append(f"| {case} | {' | '.join(f'{number:#.2g}' for number in numbers)} |")
    versions = ", ".join(f"{name} {sys.modules[name].__version__}" for name in ("numba", "numpy"))
    return "\n".join(
        [*lines, "", f"Measured in one run on an {platform.machine()} processor, Python {platform.python_version()}, {versions}.", ""]
    )


def main():
    if "--inside" in sys.argv:
        inside()
        return
    made = table()
    print(made)
    if "--write" in sys.argv:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(before + BEGIN + made + END + after, encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
