"""Copy on write and swapping on a GPU: what crosses PCIe beside the kernels comes back bit by bit."""

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
    "fp8": CacheShape(3, 16, 2, 128, BFLOAT16, kv_format("fp8", 128)),
    "odd": CacheShape(2, 5, 3, 7, BFLOAT16),
}


def fill_with_noise(cache):
    """Random bytes everywhere, and the same on the host: for each array [2 * layers, num_blocks, ...]."""
    random, truth = np.random.default_rng(0), []
    for array in cache.arrays:
        truth.append(random.integers(0, 256, array.nbytes, np.uint8).view(array.dtype).reshape(array.shape))
        array.copy_from_host(truth[-1])
    return truth


@pytest.mark.parametrize("name", SHAPES)
def test_blocks_are_copied_in_every_layer_one_after_the_other(name):
    from minllm.ops.cuda_ops import CudaOps

    ops = CudaOps("bfloat16")
    cache = KVCache(ops, SHAPES[name], 64)
    truth, copies = fill_with_noise(cache), [(63, 1), (1, 2), (0, 63), (5, 6), (5, 7)]
    cache.copy_blocks(ops, copies)
    for array, expected in zip(cache.arrays, truth, strict=True):
        for source, destination in copies:
            expected[:, destination] = expected[:, source]
        np.testing.assert_array_equal(array.copy_to_host().view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("beside", [False, True])
def test_what_comes_in_waits_for_what_still_goes_out(beside):
    """Large chunks: the blocks are gathered long before they have crossed, and all of it comes back at once."""
    from minllm.cache.transfers import CudaTransfers
    from minllm.ops.cuda_ops import CudaOps

    ops, shape, num_blocks = CudaOps("bfloat16"), CacheShape(8, 16, 8, 64, BFLOAT16), 1024
    cache, policy = KVCache(ops, shape, num_blocks), PagedPolicy(num_blocks, shape.block_size)
    space = SwapSpace(cache, policy, CudaTransfers(ops.memory, ops.core_stream), 1 << 29)
    (truth,) = fill_with_noise(cache)
    lengths = {"a": 8100, "b": 3, "c": 4096}
    for sequence, length in lengths.items():
        policy.reserve(sequence, range(length))
    tables = {sequence: policy.table(sequence) for sequence in lengths}
    for sequence, length in lengths.items():
        space.swap_out(sequence, length)
    assert space.reap(wait=True) == 3
    for sequence in reversed(lengths):
        space.swap_in(sequence, beside=beside)
    while beside and not all(map(space.has_arrived, lengths)):
        pass
    found = cache.arrays[0].copy_to_host()
    for sequence in lengths:
        np.testing.assert_array_equal(found[:, policy.table(sequence)].view(np.uint8), truth[:, tables[sequence]].view(np.uint8))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
def test_swapped_blocks_come_back_while_others_compute(name, pinned):
    from minllm.cache.transfers import CudaTransfers
    from minllm.ops.cuda_ops import CudaOps
    from minllm.runtime.stream import fill_words_later

    ops, shape, num_blocks = CudaOps("bfloat16"), SHAPES[name], 64
    cache, policy = KVCache(ops, shape, num_blocks), PagedPolicy(num_blocks, shape.block_size)
    space = SwapSpace(cache, policy, CudaTransfers(ops.memory, ops.core_stream, pinned), 1 << 26, chunk_blocks=4)
    busy = ops.empty((64 << 20,), np.uint8)
    fill_with_noise(cache)

    def blocks_of(sequence):
        return [array.copy_to_host()[:, policy.table(sequence)].view(np.uint8) for array in cache.arrays]

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
        for array in cache.arrays:
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
