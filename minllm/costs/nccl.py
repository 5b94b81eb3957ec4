"""What NCCL's all-reduce takes between H200s: measured times, the peer of predictions.

Microseconds of one all-reduce of a bfloat16 message in a CUDA graph, through PyTorch, NVLink without multicast (NCCL_NVLS_ENABLE=0). They
were measured on two and four H200s of one host before `minllm bench all-reduce` existed, which measures the same: docs/results has none
of them, and a run of that command replaces them.
"""

from bisect import bisect_left

KB, MB = 1 << 10, 1 << 20
SIZES = (8 * KB, 64 * KB, 256 * KB, 512 * KB, MB, 2 * MB, 4 * MB, 16 * MB, 64 * MB)
MICROSECONDS = {  # short name of machine/hardware.py -> number of GPUs -> for each of SIZES
    "h200": {
        2: (9.7, 10.3, 11.9, 13.4, 17.3, 30.5, 35.2, 79.3, 254.0),
        4: (13.5, 14.0, 14.6, 17.3, 21.1, 29.6, 42.0, 96.2, 325.0),
    }
}


def nccl_microseconds(gpu: str, ranks: int, message_bytes: float) -> float | None:
    """The time of one all-reduce on each of `ranks` such GPUs; None if it was not measured between so many.

    Between two measured sizes it is a straight line; below the smallest as long, beyond the largest in proportion to the bytes.
    """
    times = MICROSECONDS.get(gpu, {}).get(ranks)
    if times is None:
        return None
    if message_bytes <= SIZES[0]:
        return times[0]
    if message_bytes >= SIZES[-1]:
        return times[-1] * message_bytes / SIZES[-1]
    above = bisect_left(SIZES, message_bytes)
    share = (message_bytes - SIZES[above - 1]) / (SIZES[above] - SIZES[above - 1])
    return times[above - 1] + share * (times[above] - times[above - 1])
