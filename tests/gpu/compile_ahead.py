"""Compile all specimens for this machine's GPU into the disk cache, on all cores: `python -m tests.gpu.compile_ahead`.

Tests then load the kernels that a model runs, instead of compiling them one after another; kernels with odd options are compiled by the
tests that make them.
"""

import functools
import sys
import time

from minllm.engine.progress import progress_bars
from minllm.errors import KernelCompilationError
from minllm.kernels.specimen import TARGETS
from minllm.kernels.specimens import signatures_for
from minllm.runtime.compile_ahead import compile_ahead
from minllm.runtime.device import current_device, is_available


def main() -> None:
    """The command."""
    if not is_available():
        print("no CUDA device: no kernels are compiled ahead")
        return
    start = time.perf_counter()
    capability = tuple(current_device().compute_capability)
    generation = max(target for target in TARGETS if target <= capability)
    with compile_ahead(signatures_for, (generation,), capability) as work, progress_bars(True) as report:
        work.wait(functools.partial(report, "Compiling kernels"))
    for kernel, types in signatures_for(generation):
        try:
            kernel.compile(*types, compute_capability=capability)
        except KernelCompilationError as error:
            print(error, file=sys.stderr)
    seconds = time.perf_counter() - start
    print(f"{work.done} of {len(work.keys)} missing kernels compiled by {len(work.workers)} processes in {seconds:.0f} s")


if __name__ == "__main__":
    main()
