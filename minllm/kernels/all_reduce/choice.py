"""Which all-reduce serves a message, by its size and the number of ranks.

    LLM(tensor_parallel_size=2, kernel_variants={"all_reduce": "by_size"})      this table
    LLM(tensor_parallel_size=2, kernel_variants={"all_reduce": "one_shot"})     one kernel, for all messages that the ranks' memory holds

The limits of 2 ranks are measured on two H200s (docs/results/h200_all_reduce.json, `minllm bench all-reduce`): at 16 MB one_shot and NCCL
are equal. Those of more ranks are assumed: between one shot and two they are vLLM's for GPUs that are all connected by NVLink
(csrc/custom_all_reduce.cuh: two shots from 512 KB on for 4 ranks, from 256 KB for 8), those of low_latency and of NCCL are guesses.
Engines leave all messages to NCCL unless they are told otherwise: with these kernels no engine has run on GPUs yet.
"""

from minllm.errors import KernelArgumentError
from minllm.kernels.all_reduce import VARIANTS

KB, MB = 1 << 10, 1 << 20
RUNS_IN_ENGINES = False  # tests/gpu/test_ranks.py has to pass first
# ranks: (bytes up to which an algorithm serves, its name), in order of size; larger messages are NCCL's
LIMITS = {
    2: ((256 * KB, "low_latency"), (4 * MB, "one_shot")),
    4: ((64 * KB, "low_latency"), (512 * KB, "one_shot"), (2 * MB, "two_shot")),
    8: ((32 * KB, "low_latency"), (256 * KB, "one_shot"), (2 * MB, "two_shot")),
}
BY_SIZE, LIBRARY = "by_size", "nccl"
DEFAULT = BY_SIZE if RUNS_IN_ENGINES else LIBRARY  # what engines use unless they are told


def names() -> list[str]:
    """What kernel_variants may say of the stage all_reduce."""
    return [BY_SIZE, LIBRARY, *VARIANTS.names("message")]


def memory_bytes(ranks: int) -> tuple[int, int]:
    """(the largest message of any algorithm, that of low_latency) for which the ranks of an engine allocate memory."""
    limits = _limits(ranks)
    return limits[-1][0], next(largest for largest, name in limits if name == "low_latency")


def chosen(name: str, ranks: int, message_bytes: int) -> str | None:
    """The algorithm for a message if kernel_variants says `name`; None if it is left to NCCL."""
    if name == BY_SIZE:
        return choose(ranks, message_bytes)
    return None if name == LIBRARY else name


def choose(ranks: int, message_bytes: int) -> str | None:
    """The name of the algorithm for a message of this size; None if it is left to NCCL.

    Between the numbers of ranks in the table the next larger one counts. Raises KernelArgumentError for more ranks than it has.
    """
    return next((name for largest, name in _limits(ranks) if message_bytes <= largest), None)


def _limits(ranks: int) -> tuple[tuple[int, str], ...]:
    """The table's row. Raises KernelArgumentError for more ranks than it has."""
    if not 2 <= ranks <= max(LIMITS):
        raise KernelArgumentError(f"{ranks} ranks; an all-reduce between peers takes 2 to {max(LIMITS)}")
    return LIMITS[min(known for known in LIMITS if known >= ranks)]
