"""A pool of threads for passes over large host arrays: NumPy releases the GIL while it copies and compares.

One core reads about 10 GB/s, and waits for every page of a file that is not in memory yet. Several readers load a checkpoint several times
faster.
"""

from concurrent.futures import ThreadPoolExecutor

from minllm.machine.host import available_cores

MOST_THREADS = 8
THREADS = min(MOST_THREADS, available_cores())


def host_threads() -> ThreadPoolExecutor:
    """A pool of THREADS threads, as a context manager that ends them."""
    return ThreadPoolExecutor(THREADS, "minllm-host")
