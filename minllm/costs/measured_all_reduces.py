"""Measured times of all-reduces, by NCCL and by minllm's kernels; predictions of whole steps add them up.

Times are microseconds of one all-reduce of a bfloat16 message in a CUDA graph, over NVLink without multicast. Those that
`minllm bench all-reduce` has recorded (docs/results) come with the package in data/measurements.json: NCCL's through PyTorch, those of
the minllm kernel that is chosen for the message (kernels/all_reduce/choice.py), and of the kernel that takes an all-reduce's place if ranks
divide the rows of a prompt.
"""

import functools
import math
from bisect import bisect_left

from minllm.costs.parallel import divides_rows
from minllm.machine.hardware import GPUS, read_measurements
from minllm.models.config import ModelConfig

KB, MB = 1 << 10, 1 << 20
NCCL, KERNELS, SEQUENCE_PARALLEL = "nccl", "kernels", "sequence_parallel"
PAGE_BYTES = 2 * MB  # the smallest piece of a GPU's memory that can be mapped; rows that a rank owns side by side fill such pieces
Times = dict[int, float]  # bytes of the message -> microseconds
SIZES = (8 * KB, 64 * KB, 256 * KB, 512 * KB, MB, 2 * MB, 4 * MB, 16 * MB, 64 * MB)


@functools.cache
def measured_times() -> dict[tuple[str, int], dict[str, Times]]:
    """{(short name of a GPU in machine/hardware.py, number of GPUs): {NCCL, KERNELS or SEQUENCE_PARALLEL: times}}."""
    found = {}
    for name, measured in read_measurements().items():
        for ranks, recorded in measured.get("all_reduces", {}).items():
            times = {by: {int(size): value for size, value in one.items()} for by, one in recorded.items()}
            found[GPUS[name].short_name, int(ranks)] = times
    return found


def all_reduce_microseconds(gpu: str, ranks: int, message_bytes: float, by: str = NCCL) -> float | None:
    """Microseconds of one all-reduce between `ranks` of these GPUs; None if this number of them was not measured.

    by: NCCL, KERNELS or SEQUENCE_PARALLEL. Between two measured sizes times are interpolated linearly. Smaller messages take as long as the
    smallest; larger ones take time in proportion to their bytes.
    """
    times = measured_times().get((gpu, ranks), {}).get(by)
    if not times:
        return None
    sizes = sorted(times)
    if message_bytes <= sizes[0]:
        return times[sizes[0]]
    if message_bytes >= sizes[-1]:
        return times[sizes[-1]] * message_bytes / sizes[-1]
    above = bisect_left(sizes, message_bytes)
    low, high = sizes[above - 1], sizes[above]
    share = (message_bytes - low) / (high - low)
    return times[low] + share * (times[high] - times[low])


def kernels_microseconds(config: ModelConfig, gpu: str, ranks: int, tokens: int, itemsize: int = 2) -> float | None:
    """Microseconds in which minllm's kernels add up the partial sums of a step; None if no all-reduces between `ranks` GPUs were measured.

    That is an all-reduce, or what takes its place if the ranks divide the rows.
    """
    row_bytes = config.hidden_size * itemsize
    if divides_rows(config) and tokens * row_bytes >= ranks * math.lcm(PAGE_BYTES, row_bytes):
        found = all_reduce_microseconds(gpu, ranks, tokens * row_bytes, SEQUENCE_PARALLEL)
        if found is not None:
            return found
    return all_reduce_microseconds(gpu, ranks, tokens * row_bytes, KERNELS)
