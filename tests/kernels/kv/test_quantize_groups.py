"""Groups of recent tokens to codes: the reference from the definition, the simulated kernel to the bit, and callers' mistakes."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.catalogue.kv import quantized
from minllm.catalogue.noise import SHORT, Noise
from minllm.errors import KernelArgumentError
from minllm.kernels.kv.ladder.append import append
from minllm.kernels.kv.quantize_groups import quantize_groups, quantize_groups_reference
from minllm.kernels.quantization.cache import allocate
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.reference import quantize_by_channel, quantize_reference
from tests.kernels.guarded import BFLOAT16, bits

UNWRITTEN = 0xA5  # every byte of codes that nobody has written


def make_arrays(query_len, context_len, block_size=32):
    """(recent keys and values), (key cache, value cache), (query_start, context_lens, block_tables, recent_lens, recent_tables)."""
    arrays = quantized.quantize_groups((query_len,), (context_len,), 64, 1, block_size, BFLOAT16).arrays(Noise(length=SHORT))
    names = ("query_start", "context_lens", "block_tables", "recent_lens", "recent_tables")
    caches = quantized.quantized_caches(kv_format("kivi_int4", 64), arrays, by_channel=True)
    return (arrays["recent_key"], arrays["recent_value"]), caches, tuple(arrays[name] for name in names)


def test_a_group_is_written_when_its_last_token_comes():
    """The group of positions 64 to 95 of a chunk from 90 to 96, in the second half of its block of 64."""
    recents, (keys, values), batch = make_arrays(7, 97, block_size=64)
    quantize_groups_reference(*recents, keys, values, *batch)
    block, group = batch[2][0, 1], batch[4][0, 2]  # with a window of 64, recent tokens still begin at position 0
    codes, pairs = quantize_by_channel(recents[0][group, :, 0].astype(np.float32), keys.format)
    np.testing.assert_array_equal(keys.codes[block, 0, :32], codes)
    np.testing.assert_array_equal(bits(keys.scales[block, 0, 0]), bits(pairs))
    expected = quantize_reference(recents[1][group], values.format)
    np.testing.assert_array_equal(values.codes[block, 0, :32], expected[0][:, 0])
    written = np.zeros(keys.codes.shape[:3], bool)
    written[block, 0, :32] = True
    assert (keys.codes[~written] == UNWRITTEN).all() and (values.codes[~written] == UNWRITTEN).all()


def test_mistakes_are_explained():
    recents, (keys, values), batch = make_arrays(1, 64)
    by_token = allocate(kv_format("int4", 64), 3, 32, 1, np.zeros, np.array)
    mistakes = {
        "in int4 are quantised token by token": (*recents, by_token, by_token, *batch),
        "the key_cache is kivi_int4 .* and the value_cache int4": (*recents, keys, by_token, *batch),
        r"recent_key is bfloat16 \[.*tokens=32": (recents[0][:, :16].copy(), recents[1], keys, values, *batch),
        "recent_value is float32": (recents[0], recents[1].astype(np.float32), keys, values, *batch),
        r"key_cache.scales is float16 .*block_size=1": (*recents, replace(keys, scales=keys.scales[:, :, :, :32].copy()), values, *batch),
        "recent_tables is int64": (*recents, keys, values, *batch[:4], batch[4].astype(np.int64)),
    }
    for message, arguments in mistakes.items():
        with pytest.raises(KernelArgumentError, match=message):
            quantize_groups(*arguments)
    with pytest.raises(KernelArgumentError, match="quantised in groups of tokens"):
        append(recents[0][0], recents[1][0], keys, values, np.zeros(32, np.int32))
