"""Which all-reduce serves a message, by its size and the number of ranks.

NOT MEASURED YET: these limits are assumed. Those between one shot and two are vLLM's for GPUs that are all connected by NVLink
(csrc/custom_all_reduce.cuh: two shots from 512 KB on for 4 ranks, from 256 KB for 8, never for 2, where both move the same bytes); those of
low_latency and of NCCL are guesses. `minllm bench all-reduce` measures what belongs here.
"""

from minllm.errors import KernelArgumentError

KB, MB = 1 << 10, 1 << 20
IS_MEASURED = False
# ranks: (bytes up to which an algorithm serves, its name), in order of size; larger messages are NCCL's
LIMITS = {
    2: ((64 * KB, "low_latency"), (2 * MB, "one_shot")),
    4: ((64 * KB, "low_latency"), (512 * KB, "one_shot"), (2 * MB, "two_shot")),
    8: ((32 * KB, "low_latency"), (256 * KB, "one_shot"), (2 * MB, "two_shot")),
}


def choose(ranks: int, message_bytes: int) -> str | None:
    """The name of the algorithm for a message of this size; None if it is left to NCCL.

    Between the numbers of ranks in the table the next larger one counts. Raises KernelArgumentError for more ranks than it has.
    """
    if not 2 <= ranks <= max(LIMITS):
        raise KernelArgumentError(f"{ranks} ranks; an all-reduce between peers takes 2 to {max(LIMITS)}")
    limits = LIMITS[min(known for known in LIMITS if known >= ranks)]
    return next((name for largest, name in limits if message_bytes <= largest), None)
