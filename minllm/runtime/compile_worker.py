"""A worker process of compile_ahead.py, which reads its task from standard input.

The task is pickled: (find, arguments, compute capability, [(place, key), ...]). The worker compiles the kernels at these places of the list
find(*arguments), and stores them in the disk cache, where they have these keys.
"""

import contextlib
import gc
import pickle
from collections.abc import Mapping

from minllm.errors import KernelCompilationError
from minllm.runtime.child_process import receive_task
from minllm.runtime.disk_cache import is_cached
from minllm.runtime.dry_run import Signature


def main() -> None:
    """Receive the task and compile its kernels: the entry point of the process."""
    find, arguments, compute_capability, places = pickle.loads(receive_task())
    gc.freeze()  # imported objects live until the process ends, so no collection needs to visit them
    found = find(*arguments)
    compile_all({key: found[place] for place, key in places}, compute_capability)


def compile_all(kernels: Mapping[str, Signature], compute_capability: tuple[int, int]) -> None:
    """Compile the kernels that no other process is compiling, then wait for the others, or compile them after all.

    A kernel that does not compile is left to the process that launches it, which raises the error.
    """
    skipped = [key for key in kernels if not compile_one(kernels[key], key, compute_capability, wait=False)]
    for key in skipped:
        compile_one(kernels[key], key, compute_capability, wait=True)


def compile_one(signature: Signature, key: str, compute_capability: tuple[int, int], wait: bool) -> bool:
    """Compile a kernel; returns False only if `wait` is false and another process is compiling it."""
    if is_cached(key):
        return True
    with contextlib.suppress(KernelCompilationError):
        return signature.kernel.compile(*signature.types, compute_capability=compute_capability, wait=wait) is not None
    return True
