"""Appending to a quantised cache, alone and fused with split, norm and RoPE: extremes, and callers' mistakes."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.catalogue.kv.quantized import append_quantized, quantized_caches
from minllm.catalogue.noise import SHORT, Noise
from minllm.errors import KernelArgumentError
from minllm.kernels.kv.ladder.append import append
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from minllm.kernels.quantization.formats import kv_format


def caches_of(head_dim, name, **options):
    """(slots, key cache, value cache) of four tokens with two heads."""
    arrays = append_quantized(4, 2, head_dim, name, **options).arrays(Noise(length=SHORT))
    return arrays["slot_mapping"], *quantized_caches(kv_format(name, head_dim), arrays)


def test_numbers_all_alike_and_empty_batches(device):
    slots, key_cache, value_cache = caches_of(64, "int4", smooth=False, skip=False)
    same = np.full((4, 2, 64), -3.25, np.float16)
    append(same, same, key_cache, value_cache, slots)
    block, offset = slots // 16, slots % 16
    assert not key_cache.codes.swapaxes(1, 2)[block, offset].any()
    assert (key_cache.scales.swapaxes(1, 2)[block, offset] == [0, -3.25]).all()
    append(same[:0], same[:0], key_cache, value_cache, slots[:0])


def test_mistakes_are_explained():
    slots, key_cache, value_cache = caches_of(64, "int8")
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
    slots, key_cache, value_cache = caches_of(64, "int8")
    positions, query = np.zeros(4, np.int32), np.zeros((4, 4, 64), np.float32)
    for cos_sin, interleaved in ((np.zeros((9, 32), np.float32), False), (np.zeros((9, 64), np.float32), True)):
        with pytest.raises(KernelArgumentError, match="turn whole heads"):
            qkv_rope_append(np.zeros((4, 512), np.float32), positions, slots, key_cache, value_cache, query, cos_sin, interleaved)
