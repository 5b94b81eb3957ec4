"""The ladder for the one-shot all-reduce, with two and three ranks in the simulator."""

import functools

import ml_dtypes
import numpy as np

from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.checks.traffic import expect_bytes
from minllm.course.exercise import Exercise, Rung
from minllm.kernels.all_reduce.peers import launch_together, simulated_peers
from minllm.kernels.all_reduce.reference import all_reduce_reference
from minllm.sim import unwritten

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MOST_BYTES = 1 << 14


def summed(one_shot, messages, peers=None):
    """The results of all ranks for one all-reduce of `messages`."""
    outs = [unwritten(message.shape, message.dtype) for message in messages]
    peers = peers or simulated_peers(len(messages), MOST_BYTES)
    launch_together([one_shot(message, out, own) for message, out, own in zip(messages, outs, peers)])
    return outs


def random_messages(ranks, size, dtype=np.float32):
    """One message per rank."""
    return list(np.random.default_rng(size).standard_normal((ranks, size)).astype(dtype))


def sums(ranks, size, dtype=np.float32):
    """The rung that compares all ranks' results with the sum."""

    def run(one_shot):
        messages = random_messages(ranks, size, dtype)
        right = all_reduce_reference(messages)
        for rank, out in enumerate(summed(one_shot, messages)):
            following = messages[(rank + 1) % ranks]
            expect(f"out of rank {rank}", out, right, ("element",), [
                ("this rank's own message alone: read the staging memory of every rank.", messages[rank]),
                ("the own message is missing in the sum: the loop runs over all ranks, this one among them.", right - messages[rank]),
                ("one message alone, of the next rank: add them all up.", following),
            ])  # fmt: skip

    return run


def same_bits(one_shot):
    """Check that all ranks get the same bits, for numbers with a sum that depends on the order of its terms."""
    messages = [np.full(16, value, np.float32) for value in (3e7, 1.0, -3e7)]
    outs = summed(one_shot, messages)
    right = all_reduce_reference(messages)
    for rank, out in enumerate(outs):
        if out.tobytes() != right.tobytes():
            raise Mismatch(
                f"out of rank {rank}: {out[0]}, expected {right[0]}, the sum in rank order\nLikely cause: this rank adds in another "
                "order, or the copies do not lie with the ranks that made them. Sums round, so ranks that add in different orders part."
            )
    expect("out", outs[0], right)


def two_halves(one_shot):
    """Check that the second all-reduce does not overwrite the copy of the first, which a peer may still read."""
    peers = simulated_peers(2, MOST_BYTES)
    first, second = random_messages(2, 64), random_messages(2, 72)
    for messages in (first, second):
        for rank, out in enumerate(summed(one_shot, messages, peers)):
            expect(f"out of rank {rank}", out, all_reduce_reference(messages), ("element",))
    for rank, own in enumerate(peers):
        halves = own.own.staging.reshape(2, -1).view(np.float32)
        for name, half, message in (("first", 1, first[rank]), ("second", 0, second[rank])):
            if not np.array_equal(halves[half, : message.size], message):
                raise Mismatch(
                    f"rank {rank}: half {half} of its staging memory does not hold the message of the {name} all-reduce\nLikely cause: "
                    "words are counted from `half`, which changes with each all-reduce. A peer may still be reading the other half."
                )


def moves(one_shot):
    """Check that each rank copies its message once, and reads each copy once."""
    messages = random_messages(2, 64)
    peers, outs, size = simulated_peers(2, MOST_BYTES), [unwritten((64,), np.float32) for _ in range(2)], 256
    launches = [one_shot(message, out, own) for message, out, own in zip(messages, outs, peers)]
    expect_bytes(
        functools.partial(launch_together, launches),
        {"rank 0's x": size, "rank 0's staging[0]": size, "rank 0's staging[1]": size},
        {"rank 0's out": size, "rank 0's staging[0]": size},
        "a message crosses NVLink once: copy your own, read everybody's once.",
    )


EXERCISES = (
    Exercise(
        name="all_reduce.one_shot",
        lesson=20,
        title="several GPUs: an all-reduce in one shot",
        module="minllm.kernels.all_reduce.one_shot",
        entry="one_shot",
        task="Copy x, vector by vector, into this rank's staging memory: copy_vector(x, i * width, staging[rank], half + 4 * i), for all "
        "vectors i < vectors with a stride of cuda.gridsize(1). Then meet(signals, 0, rank, epoch, fault, limit). Then add_up(staging, "
        "half + 4 * i, total) and store(out, i * width, total, 0), for the same vectors i as before.",
        hints=(
            "A vector is 16 bytes: `width` elements of x, and 4 words of the staging memory.",
            "meet is called once, by all threads of the block: not in the loop, nor in an if.",
        ),
        rungs=(
            Rung("one vector, two ranks", "the sum of both messages, on both ranks.", sums(2, 4)),
            Rung("an odd number of vectors", "the last threads have no vector.", sums(2, 52)),
            Rung("bfloat16", "a vector has 8 elements, and 4 words.", sums(2, 24, BFLOAT16)),
            Rung("several blocks", "each block meets the same block of its peers, so it adds up what it has copied.", sums(2, 4 * 520)),
            Rung("three ranks", "the loop runs over all ranks.", sums(3, 24)),
            Rung("the same bits", "all ranks add in rank order.", same_bits),
            Rung("one after another", "two all-reduces use the two halves in turn.", two_halves),
            Rung("bytes", "each message crosses NVLink once.", moves),
        ),
    ),
)  # fmt: skip
