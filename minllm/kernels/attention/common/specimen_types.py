"""Shared by the specimens of attention kernels: argument types, prompt lengths, expected instructions."""

from minllm.kernels.specimen import INT32, array
from minllm.machine.numba_cuda import types

BLOCK_SIZE = 16
NO_LSE = types.none  # argument type of lse for kernels that do not write it
NO_SCALES = types.none  # argument type of scales for a plain cache
BATCH = (array(INT32, 1), array(INT32, 1), array(INT32, 2))  # query_start, context_lens, block_tables
# (compute capability whose shared memory size determines the shape of a decode step, targets, KV heads of the batch).
SPLIT_TARGETS = (((8, 9), ((8, 0), (8, 9)), 8), ((9, 0), ((9, 0), (10, 0)), 8), ((9, 0), ((9, 0),), 1024))
SHORT, LONG = 100, 8192  # tokens of a prompt of few tiles, and of one with many
SM_COUNT = 132  # an H200
TENSOR_CORES = ("HMMA.16816.F32*", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS*128*", "MUFU.EX2")


def inputs(dtype):
    """The types of query, key_cache and value_cache."""
    return array(dtype, 3), array(dtype, 4), array(dtype, 4)
