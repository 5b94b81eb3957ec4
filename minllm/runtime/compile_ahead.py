"""Compile kernels in parallel processes before they are launched, and store them in the disk cache.

    with compile_ahead(kernels_needed, (shape,), (9, 0)) as work:     # kernels_needed(shape) -> list of Signature
        ...                                                           # read the weights
        work.wait(progress)

A kernel is a Python function with a closure, which cannot be sent to another process. So every worker process calls the same function
with the same arguments as this one, and finds the same list of kernels. It is told which places of this list to compile, with their keys in
the disk cache, which take seconds to compute. Workers take them in order, and skip kernels that another one is compiling: the locks of the
disk cache divide the work, also among several programs that start at once. A worker that fails leaves its kernels to the others or, in the
end, to this process, which compiles a missing kernel when it is launched.

Numba compiles one kernel at a time in a process, because of its global lock.
"""

import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import IO

from minllm.machine import host
from minllm.runtime.cache_key import key_and_size
from minllm.runtime.child_process import end_children, send_task, start_child
from minllm.runtime.disk_cache import CAN_LOCK, is_cached, is_writable
from minllm.runtime.dry_run import Signature

WORKER_BYTES = 1 << 30  # host memory per process: 0.5 GB for the largest kernels, and 12 MB more for each further kernel, which Numba keeps
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
    find: Callable[..., list[Signature]], arguments: tuple, compute_capability: tuple[int, int], processes: int = sys.maxsize
) -> CompileAhead:
    """Start to compile the kernels that find(*arguments) lists and the disk cache lacks.

    find: a function of a module, which lists the same kernels in the same order in every process; it and its arguments must be picklable.
    processes: the most worker processes; there are at most one per core, and fewer if memory is short.
    """
    found = find(*arguments)
    keyed = keys_of(found, compute_capability)
    missing = [key for key in keyed if not is_cached(key)] if is_writable() else []
    places = {signature: place for place, signature in enumerate(found)}
    task = pickle.dumps((find, arguments, compute_capability, [(places[keyed[key]], key) for key in missing]))
    work = CompileAhead(missing)
    try:
        for _ in range(min(len(missing), available_cores(), processes)):
            work.workers.append(start_worker(work.errors))
        for worker in work.workers:  # after all have started: a long task waits until its worker reads it
            send_task(worker, task)
    except BaseException as error:
        work.close()
        if not isinstance(error, OSError):  # the system starts no more processes: this one compiles
            raise
    return work


def keys_of(found: Sequence[Signature], compute_capability: tuple[int, int]) -> dict[str, Signature]:
    """{key in the disk cache: kernel}, without kernels that are not cached; the slowest to compile is first."""
    sized = [(*key_and_size(one.kernel.function, one.types, compute_capability, one.kernel.options), one) for one in found]
    return {key: signature for key, size, signature in sorted(sized, key=lambda entry: -entry[1]) if key is not None}


def available_cores() -> int:
    """The number of cores for worker processes, fewer if memory is short; 0 in a program that was frozen with its interpreter.

    It is 1 without locks (disk_cache.py), because nothing would divide the work among processes.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        return 0
    return max(1, min(host.available_cores(), host.available_host_bytes() // WORKER_BYTES)) if CAN_LOCK else 1


def start_worker(errors: IO) -> subprocess.Popen:
    """Start a process that runs compile_worker.py, without a GPU, and with its standard error in the file `errors`."""
    environment = ONE_THREAD | PLAIN_MESSAGES | {"CUDA_VISIBLE_DEVICES": ""}
    return start_child("minllm.runtime.compile_worker", environment, stdout=subprocess.DEVNULL, stderr=errors)
