"""Compile kernels in parallel processes before they are launched, and store them in the disk cache.

    with compile_ahead(kernels_needed, (shape,), (9, 0)) as work:     # kernels_needed(shape) -> list of Signature
        ...                                                           # read the weights
        work.wait(progress)

A kernel is a Python function with a closure, which cannot be sent to another process. So every worker process calls the same function
with the same arguments as this one, and finds the same kernels, which are identified by their keys in the disk cache. Workers take them in
order, and skip kernels that another one is compiling: the locks of the disk cache divide the work, also among several programs that start
at once. A worker that fails leaves its kernels to the others or, in the end, to this process, which compiles a missing kernel when it is
launched.

Numba compiles one kernel at a time in a process, because of its global lock.
"""

import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from minllm.machine import host
from minllm.runtime.cache_key import code_size
from minllm.runtime.child_process import end_children, start_child
from minllm.runtime.disk_cache import CAN_LOCK, is_cached, is_writable
from minllm.runtime.dry_run import Signature

MOST_PROCESSES = 16
POLL_SECONDS = 0.02
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")}

PLAIN_MESSAGES = {"NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING": "1"}  # Numba colours thousands of messages that it then drops


class CompileAhead:
    """Keys of kernels that are missing from the disk cache, and the processes that compile them, which end with the context."""

    def __init__(self, keys: Sequence[str] = ()):
        self.keys = keys
        self.workers: list[subprocess.Popen] = []
        self.errors = tempfile.TemporaryFile() if keys else None  # standard error of the workers

    def __enter__(self) -> "CompileAhead":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def done(self) -> int:
        """The number of kernels that have been compiled."""
        return sum(map(is_cached, self.keys))

    def wait(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Wait until all kernels are compiled or no process is left; calls progress(done, total) at each change."""
        reported, running = None, True
        while running and reported != len(self.keys):
            running = any(worker.poll() is None for worker in self.workers)  # before the kernels are counted: none may be missed
            if (done := self.done) != reported:
                reported = done
                if progress is not None and self.keys:
                    progress(done, len(self.keys))
            elif running:
                time.sleep(POLL_SECONDS)
        self.warn_of_failures()

    def warn_of_failures(self) -> None:
        """Warn of workers that have ended with an error."""
        if failed := sum(worker.poll() not in (None, 0) for worker in self.workers):
            self.errors.seek(0)
            reason = self.errors.read().decode(errors="replace").strip().rpartition("\n")[2] or "no message"
            message = f"{failed} of {len(self.workers)} processes that compile kernels have failed, which makes starting slower: {reason}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def close(self) -> None:
        """End the processes, whether they are done or not."""
        end_children(self.workers)
        if self.errors is not None:
            self.errors.close()


def compile_ahead(
    find: Callable[..., list[Signature]], arguments: tuple, compute_capability: tuple[int, int], processes: int = MOST_PROCESSES
) -> CompileAhead:
    """Start to compile the kernels that find(*arguments) lists and the disk cache lacks.

    find: a function of a module; it and its arguments must be picklable. processes: the most worker processes; there are at most one per
    core and MOST_PROCESSES in all.
    """
    found = keys_of(find(*arguments), compute_capability)
    missing = [key for key in found if not is_cached(key)] if is_writable() else []
    missing.sort(key=lambda key: code_size(found[key].kernel.function), reverse=True)  # start with the slowest to compile
    task = pickle.dumps((find, arguments, compute_capability, missing))
    work = CompileAhead(missing)
    try:
        for _ in range(min(len(missing), available_cores(), processes)):
            work.workers.append(start_worker(task, work.errors))
    except BaseException as error:
        work.close()
        if not isinstance(error, OSError):  # the system starts no more processes: this one compiles
            raise
    return work


def keys_of(found: Sequence[Signature], compute_capability: tuple[int, int]) -> dict[str, Signature]:
    """{key in the disk cache: kernel}, without kernels that are not cached."""
    keys = {signature.kernel.cache_key(signature.types, compute_capability): signature for signature in found}
    return {key: signature for key, signature in keys.items() if key is not None}


def available_cores() -> int:
    """The number of cores for worker processes, at most MOST_PROCESSES; 0 in a program that was frozen with its interpreter.

    It is 1 without locks (disk_cache.py), because nothing would divide the work among processes.
    """
    is_python = bool(sys.executable) and not getattr(sys, "frozen", False)
    return min(MOST_PROCESSES if CAN_LOCK else 1, host.available_cores()) if is_python else 0


def start_worker(task: bytes, errors: Any) -> subprocess.Popen:
    """Start a process that runs compile_worker.py on a task, without a GPU, and with its standard error in the file `errors`."""
    environment = ONE_THREAD | PLAIN_MESSAGES | {"CUDA_VISIBLE_DEVICES": ""}
    return start_child("minllm.runtime.compile_worker", task, environment, stdout=subprocess.DEVNULL, stderr=errors)
