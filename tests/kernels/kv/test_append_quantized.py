"""Appending to a quantised cache, alone and fused with split, norm and RoPE: simulated kernels, and callers' mistakes."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.kv.append import append
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from tests.kernels.guarded import BFLOAT16, DTYPES
from tests.kernels.kv.quantized_cases import CASES, QuantizedCase, check_qkv_rope_append_quantized, empty_caches


@pytest.mark.parametrize("case", CASES, ids=str)
def test_qkv_rope_append(case, device):
    check_qkv_rope_append_quantized(case, BFLOAT16, device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype, device):
    check_qkv_rope_append_quantized(CASES[5], dtype, device)


@pytest.mark.parametrize(("case", "dtype"), [(CASES[0], DTYPES[0]), (CASES[1], BFLOAT16), (CASES[9], BFLOAT16)], ids=str)
def test_recent_tokens_are_kept_as_they_are_too(case, dtype, device):
    check_qkv_rope_append_quantized(case, dtype, device, keeps_recent=True)


def test_numbers_all_alike_and_empty_batches(device):
    slots, key_cache, value_cache = empty_caches(QuantizedCase("int4", 64, smooth=False, skip=False))
    same = np.full((4, 2, 64), -3.25, np.float16)
    append(same, same, key_cache, value_cache, slots)
    block, offset = slots // 16, slots % 16
    assert not key_cache.codes.swapaxes(1, 2)[block, offset].any()
    assert (key_cache.scales.swapaxes(1, 2)[block, offset] == [0, -3.25]).all()
    append(same[:0], same[:0], key_cache, value_cache, slots[:0])


def test_mistakes_are_explained():
    slots, key_cache, value_cache = empty_caches(CASES[0])
    key, plain = np.zeros((4, 2, 64), np.float32), np.zeros((3, 16, 2, 64), np.float32)
    mistakes = {
        "the key_cache is int8 in groups of 64 and the value_cache not quantised": (key, key, key_cache, plain),
        "the caches are for heads of 64, and heads have 32": (key[..., :32].copy(), key[..., :32].copy(), key_cache, value_cache),
        "the caches hold 2 KV heads, and there are 1": (key[:, :1].copy(), key[:, :1].copy(), key_cache, value_cache),
        r"value_cache.codes is uint8 \[2, ": (key, key, key_cache, replace(value_cache, codes=value_cache.codes[:2])),
        "value_cache has a smoothing": (key, key, key_cache, replace(value_cache, smoothing=key_cache.smoothing)),
        "key_cache.smoothing is float64": (key, key, replace(key_cache, smoothing=key_cache.smoothing.astype(np.float64)), value_cache),
    }
    for message, arguments in mistakes.items():
        with pytest.raises(KernelArgumentError, match=message):
            append(*arguments, slots)


def test_positions_that_it_cannot_turn_are_refused():
    slots, key_cache, value_cache = empty_caches(CASES[0])
    positions, query = np.zeros(4, np.int32), np.zeros((4, 4, 64), np.float32)
    for cos_sin, interleaved in ((np.zeros((9, 32), np.float32), False), (np.zeros((9, 64), np.float32), True)):
        with pytest.raises(KernelArgumentError, match="turn whole heads"):
            qkv_rope_append(np.zeros((4, 512), np.float32), positions, slots, key_cache, value_cache, query, cos_sin, interleaved)
