"""Chooses the all-reduce for a message, by its size and the number of ranks.

    LLM(tensor_parallel_size=2)                                                 "by_size": the table below
    LLM(tensor_parallel_size=2, kernel_variants={"all_reduce": "one_shot"})     one kernel, for all messages that fit the ranks' memory
    LLM(tensor_parallel_size=2, kernel_variants={"all_reduce": "nccl"})         NCCL for all; steps are then launched kernel by kernel

From a page of 2 MB for each rank on, "by_size" has the ranks divide rows that a norm follows (sequence_parallel.py): 4 MB between two take
12.5 µs then, and 21.2 with one_shot, without the norm. The table is for everything else. Where low_latency serves the row of
a decode step of one sequence, by size or by name, GEMVs of plain weights send their sums themselves (gemv_low_latency.py).

The limits for 2 and 4 ranks are measured on H200s (docs/results/h200_all_reduce.json, `minllm bench all-reduce`): at 64 MB two_shot
takes 226 µs on two and NCCL 244, on four 473 and 326. Those for 8 are assumed: between one shot and two they are vLLM's for GPUs that are
all connected by NVLink (csrc/custom_all_reduce.cuh: two shots from 256 KB on); those of low_latency and of NCCL are guesses.
On two H200s a step of the 8B shape takes 2.3 ms with this table, and 24 ms with NCCL alone, whose steps are not captured as graphs.
"""

from minllm.errors import KernelArgumentError
from minllm.kernels.all_reduce import VARIANTS

KB, MB = 1 << 10, 1 << 20
# ranks: (largest message of an algorithm in bytes, its name), in order of size; NCCL takes larger messages
LIMITS = {
    2: ((256 * KB, "low_latency"), (4 * MB, "one_shot"), (64 * MB, "two_shot")),
    4: ((32 * KB, "low_latency"), (1 * MB, "one_shot"), (4 * MB, "two_shot")),
    8: ((32 * KB, "low_latency"), (256 * KB, "one_shot"), (2 * MB, "two_shot")),
}
FUSABLE = ("low_latency", "one_shot")  # algorithms that fused_norm.py has with the norm that follows
BY_SIZE, LIBRARY = "by_size", "nccl"
DEFAULT = BY_SIZE  # for engines without an entry in kernel_variants


def names() -> list[str]:
    """The names that kernel_variants accepts for the stage all_reduce."""
    return [BY_SIZE, LIBRARY, *VARIANTS.names("message")]


def memory_bytes(ranks: int) -> tuple[int, int]:
    """(largest message of any algorithm, largest message of low_latency) in bytes, for which the ranks of an engine allocate memory."""
    limits = _limits(ranks)
    return limits[-1][0], next(largest for largest, name in limits if name == "low_latency")


def chosen(name: str, ranks: int, message_bytes: int) -> str | None:
    """The algorithm for a message if kernel_variants gives `name`; None for NCCL."""
    if name == BY_SIZE:
        return choose(ranks, message_bytes)
    return None if name == LIBRARY else name


def chosen_with_norm(name: str, ranks: int, message_bytes: int) -> str | None:
    """The algorithm for a message whose kernel also adds the residual and normalises; None if other kernels do that."""
    found = chosen(name, ranks, message_bytes)
    return found if found in FUSABLE else None


def choose(ranks: int, message_bytes: int) -> str | None:
    """The name of the algorithm for a message of this size; None for NCCL.

    A number of ranks that is not in the table uses the next larger one. Raises KernelArgumentError for fewer than 2 ranks or more than 8.
    """
    return next((name for largest, name in _limits(ranks) if message_bytes <= largest), None)


def _limits(ranks: int) -> tuple[tuple[int, str], ...]:
    """The table's row for this number of ranks. Raises KernelArgumentError for fewer than 2 ranks or more than 8."""
    if not 2 <= ranks <= max(LIMITS):
        raise KernelArgumentError(f"{ranks} ranks; an all-reduce between peers takes 2 to {max(LIMITS)}")
    return LIMITS[min(known for known in LIMITS if known >= ranks)]
