"""Swapping on a GPU: what crosses PCIe beside the kernels comes back bit by bit."""

import ml_dtypes
import numpy as np
import pytest

from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.cache.offload import SwapSpace
from minllm.cache.paged import PagedPolicy
from minllm.kernels.quantization.formats import kv_format

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = {
    "bfloat16": CacheShape(4, 16, 8, 64, BFLOAT16),
    "int8": CacheShape(3, 16, 2, 128, BFLOAT16, kv_format("int8", 128)),
    "odd": CacheShape(2, 5, 3, 7, BFLOAT16),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
def test_swapped_blocks_come_back_while_others_compute(name, pinned):
    from minllm.cache.transfers import CudaTransfers
    from minllm.ops.cuda_ops import CudaOps
    from minllm.runtime.stream import fill_words_later

    ops, shape, num_blocks = CudaOps("bfloat16"), SHAPES[name], 64
    cache, policy = KVCache(ops, shape, num_blocks), PagedPolicy(num_blocks, shape.block_size)
    space = SwapSpace(cache, policy, CudaTransfers(ops.memory, ops.core_stream, pinned), 1 << 26, chunk_blocks=4)
    arrays = [array[i] for array in cache.arrays for i in range(2 * shape.num_layers)]
    random, busy = np.random.default_rng(0), ops.empty((64 << 20,), np.uint8)
    truth = [random.integers(0, 256, array.nbytes, np.uint8).view(array.dtype).reshape(array.shape) for array in arrays]
    for array, host in zip(arrays, truth, strict=True):
        array.copy_from_host(host)

    def blocks_of(sequence):
        return [array.copy_to_host()[policy.table(sequence)].view(np.uint8) for array in arrays]

    for turn in range(4):
        lengths = {"a": 20 * shape.block_size - 3, "b": 9 * shape.block_size + 1, "c": 3}
        for sequence, length in lengths.items():
            policy.reserve(sequence, range(length))
        before = {sequence: blocks_of(sequence) for sequence in lengths}
        for sequence, length in lengths.items():
            space.swap_out(sequence, length)
            fill_words_later(busy, turn, ops.core_stream)  # computes on
        assert space.reap(wait=True) == 3 and policy.usage().allocated == 0
        policy.reserve("other", range(num_blocks * shape.block_size))
        for array in arrays:
            array.fill_bytes(0xFF)
        policy.free("other")
        for sequence in ("b", "c", "a"):
            assert space.swap_in(sequence, beside=turn % 2 == 1) == lengths[sequence]
            assert turn % 2 == 0 or any(space.has_arrived(sequence) for _ in range(10**7))  # asked for some seconds at most
        for sequence in lengths:
            for old, new in zip(before[sequence], blocks_of(sequence), strict=True):
                np.testing.assert_array_equal(old, new)
            policy.free(sequence)
        policy.check()
