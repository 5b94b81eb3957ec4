"""Compile all specimens for this machine's GPU into the disk cache, on all cores: `python -m tests.gpu.compile_ahead`.

Tests then load the kernels that a model runs, instead of compiling them one after another; kernels with odd options are compiled by the
tests that make them.
"""

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from minllm.engine.progress import progress_bars
from minllm.kernels.specimens import all_specimens
from minllm.runtime.device import current_device, is_available


def compile_one(name: str, compute_capability: tuple[int, int]) -> None:
    """Compile a specimen by its name: specimens themselves cannot be sent to another process."""
    all_specimens()[name].compile(compute_capability)


def compile_all(compute_capability: tuple[int, int], processes: int) -> int:
    """Compile every specimen that is made for a target; the number of them. Raises KernelCompilationError."""
    names = [name for name, specimen in all_specimens().items() if compute_capability in specimen.targets]
    spawning = multiprocessing.get_context("spawn")  # children of a process that uses CUDA cannot be forked from it
    with ProcessPoolExecutor(processes, mp_context=spawning) as pool, progress_bars(True) as report:
        compiled = [pool.submit(compile_one, name, compute_capability) for name in names]
        for done, one in enumerate(as_completed(compiled), 1):
            one.result()
            report("Compiling kernels", done, len(names))
    return len(names)


def main() -> None:
    """The command."""
    if not is_available():
        sys.exit("no CUDA device: there is nothing to compile kernels for")
    start, processes = time.perf_counter(), os.cpu_count() or 1
    count = compile_all(tuple(current_device().compute_capability), processes)
    print(f"{count} kernels compiled, or found in the cache, by {processes} processes in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
