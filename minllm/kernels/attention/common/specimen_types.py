"""What the specimens of attention's kernels share: the types of their arguments, lengths of prompts, instructions to look for."""

from minllm.kernels.specimen import FLOAT32, INT32, array
from minllm.machine.numba_cuda import types

BLOCK_SIZE = 16
NO_LSE = types.none  # a kernel that does not write the log-sum-exp of its rows
NO_SCALES = types.none  # a cache of numbers
BATCH = (array(INT32, 1), array(INT32, 1), array(INT32, 2))  # query_start, context_lens, block_tables
# (GPU whose shared memory sets the shape of a decode step, targets, KV heads of the batch): small shared memories, and large ones.
SPLIT_TARGETS = (((8, 9), ((8, 0), (8, 9)), 8), ((9, 0), ((9, 0), (10, 0)), 8), ((9, 0), ((9, 0),), 1024))
SHORT, LONG = 100, 8192  # tokens of prompts that make few tiles, and many
SM_COUNT = 132  # SMs of an H200
TENSOR_CORES = ("HMMA.16816.F32*", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS*128*", "MUFU.EX2")


def inputs(dtype):
    """The types of query, key_cache and value_cache."""
    return array(dtype, 3), array(dtype, 4), array(dtype, 4)


def states(rank):
    """The types of a state's maximum, sum and output in memory, the first two of rank `rank`."""
    return array(FLOAT32, rank), array(FLOAT32, rank), array(FLOAT32, rank + 1)
