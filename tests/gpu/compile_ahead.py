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
from minllm.errors import KernelCompilationError
from minllm.kernels.specimen import TARGETS
from minllm.kernels.specimens import all_specimens
from minllm.runtime.device import current_device, is_available


def compile_one(name: str, compute_capability: tuple[int, int]) -> str:
    """Compile a specimen by its name, because specimens cannot be sent to another process; "" or why it does not compile."""
    try:
        all_specimens()[name].compile(compute_capability)
    except KernelCompilationError as error:
        return str(error)
    return ""


def compile_all(names: list[str], compute_capability: tuple[int, int], processes: int) -> list[str]:
    """Compile specimens for a target in parallel -> why some do not compile."""
    spawning = multiprocessing.get_context("spawn")  # a process that uses CUDA must not fork
    with ProcessPoolExecutor(processes, mp_context=spawning) as pool, progress_bars(True) as report:
        compiled = [pool.submit(compile_one, name, compute_capability) for name in names]
        for done, _ in enumerate(as_completed(compiled), 1):
            report("Compiling kernels", done, len(names))
    return [problem for one in compiled if (problem := one.result())]


def main() -> None:
    """The command."""
    if not is_available():
        print("no CUDA device: no kernels are compiled ahead")
        return
    start, processes = time.perf_counter(), os.cpu_count() or 1
    capability = tuple(current_device().compute_capability)
    generation = max(target for target in TARGETS if target <= capability)
    names = [name for name, specimen in all_specimens().items() if generation in specimen.targets]
    problems = compile_all(names, capability, processes)
    print(*problems, sep="\n", file=sys.stderr)
    print(f"{len(names)} kernels compiled, or found in the cache, by {processes} processes in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
