"""Quantised caches to append to: shuffled slots, some of them -1; what is written equals the reference's codes bit by bit."""

from dataclasses import dataclass, replace

import numpy as np

from minllm.kernels.kv.qkv_rope_append import qkv_rope_append, qkv_rope_append_reference
from minllm.kernels.quantization.cache import QuantizedCache
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.reference import dequantize_reference
from minllm.kernels.rope.rotate import rope_table
from tests.kernels.guarded import assert_close, bits, random
from tests.kernels.rope.oracles import frequencies

UNWRITTEN = 0x5A  # every byte of a cache before


@dataclass(frozen=True)
class QuantizedCase:
    """`tokens` tokens, every third without a slot where `skip`; with smoothed keys or not; the fused step's norm and positions.

    loud_end: a head's last components are its largest, so that lanes beyond the head which do not treat them alike show in its scale.
    """

    name: str
    head_dim: int
    tokens: int = 4
    kv_heads: int = 2
    block_size: int = 16
    group_size: int | None = None
    heads: int = 4
    skip: bool = True
    smooth: bool = True
    norm: bool = False
    positions: bool = True
    loud_end: bool = False


CASES = (
    QuantizedCase("int8", 64),
    QuantizedCase("int8", 128, tokens=2, kv_heads=3, smooth=False, norm=True),
    QuantizedCase("int8", 96, tokens=3, block_size=8, norm=True),
    QuantizedCase("int8", 80, tokens=2, kv_heads=1, positions=False),
    QuantizedCase("int8", 96, tokens=8, smooth=False, loud_end=True),
    QuantizedCase("int8", 128, tokens=1, kv_heads=1, group_size=16, skip=False),
    QuantizedCase("int4", 64, kv_heads=1, block_size=1, skip=False),
    QuantizedCase("int4", 128, tokens=3, group_size=64, norm=True),
    QuantizedCase("int4", 96, tokens=2),
    QuantizedCase("int4", 256, tokens=2, kv_heads=1, norm=True),
    QuantizedCase("fp8_e4m3", 64, norm=True),
    QuantizedCase("fp8_e5m2", 128, tokens=2, smooth=False),
    QuantizedCase("fp8_e4m3", 256, tokens=1, kv_heads=1, skip=False, positions=False),
)
GPU_CASES = CASES + tuple(
    QuantizedCase(name, head_dim, tokens=1031, kv_heads=8, heads=32, norm=head_dim == 128)
    for name, head_dim in (("int8", 128), ("int8", 96), ("int4", 64), ("int4", 128), ("fp8_e4m3", 128), ("fp8_e5m2", 256))
)


def empty_caches(case):
    """(slots, key cache, value cache) in NumPy, bytes all UNWRITTEN; scales of floats are given."""
    blocks = -(-case.tokens // case.block_size) + 2
    rng = np.random.default_rng(7)
    slots = rng.permutation(blocks * case.block_size)[: case.tokens].astype(np.int32)
    if case.skip:
        slots[::3] = -1
    found, caches = kv_format(case.name, case.head_dim, case.group_size), []
    for _ in range(2):
        codes = np.full((blocks, case.kv_heads, case.block_size, found.code_bytes), UNWRITTEN, np.uint8)
        pairs = np.full((blocks, case.kv_heads, case.block_size, found.groups, 4), UNWRITTEN, np.uint8).view(np.float16)
        scales = rng.uniform(0.002, 0.01, case.kv_heads).astype(np.float32) if found.is_float else pairs
        caches.append(QuantizedCache(codes, scales, found))
    if case.smooth:
        mean, factor = random((case.kv_heads, case.head_dim), np.float32, 5), rng.uniform(0.7, 1.4, (case.kv_heads, case.head_dim))
        caches[0] = replace(caches[0], smoothing=np.stack([mean, factor, 1 / factor]).astype(np.float32))
    return slots, *caches


def on(device, cache):
    """A copy of the cache in the memory of the device under test."""
    smoothing = None if cache.smoothing is None else device.array(cache.smoothing)
    return QuantizedCache(device.array(cache.codes), device.array(cache.scales), cache.format, smoothing, cache.by_channel)


def check_qkv_rope_append_quantized(case, dtype, device, keeps_recent=False):
    """Values are the reference's to the bit; keys, whose norms and turns round differently, are at most a step of the format away.

    keeps_recent: every token is also kept as it is, in a plain cache with other slots.
    """
    qkv = random((case.tokens, (case.heads + 2 * case.kv_heads) * case.head_dim), dtype, 0)
    if case.loud_end:
        qkv.reshape(case.tokens, -1, case.head_dim)[..., -8:] *= 16
    norms = random((2, case.head_dim), dtype, 1) if case.norm else (None, None)
    positions = np.random.default_rng(2).integers(0, 50, case.tokens).astype(np.int32)
    cos_sin = rope_table(50, case.head_dim, frequencies(case.head_dim)) if case.positions else None
    slots, *expected = empty_caches(case)
    caches = [on(device, cache) for cache in expected]
    options = dict(cos_sin=cos_sin, q_norm=norms[0], k_norm=norms[1])
    recent = recent_of(case, dtype) if keeps_recent else None
    copies = None if recent is None else [device.array(array.copy()) for array in recent]
    query = qkv_rope_append_reference(
        qkv, positions, slots, *expected, case.heads, case.kv_heads, epsilon=1e-6, recent=recent, **options
    )  # fmt: skip
    out = device.array(np.full(query.shape, np.nan, dtype))
    options = {name: None if array is None else device.array(array) for name, array in options.items()}
    qkv_rope_append(*map(device.array, (qkv, positions, slots)), *caches, out, epsilon=1e-6, recent=copies, **options)
    assert_close(device.host(out), query.astype(np.float64), dtype, slack=2**-7 if dtype.itemsize == 2 else 3e-6)
    np.testing.assert_array_equal(device.host(caches[1].codes), expected[1].codes)
    check_keys(QuantizedCache(device.host(caches[0].codes), device.host(caches[0].scales), expected[0].format), expected[0])
    if keeps_recent:
        assert_close(device.host(copies[0]), recent[0].astype(np.float64), dtype, slack=2**-7 if dtype.itemsize == 2 else 3e-6)
        np.testing.assert_array_equal(bits(device.host(copies[1])), bits(recent[1]))


def recent_of(case, dtype):
    """Plain caches of blocks of 32 recent tokens, keys and values, and slots in them, the second of them -1."""
    slots = np.random.default_rng(8).permutation(2 * 32 * -(-case.tokens // 32))[: case.tokens].astype(np.int32)
    slots[1:2] = -1
    shape = (2 * -(-case.tokens // 32), 32, case.kv_heads, case.head_dim)
    return np.full(shape, 7, dtype), np.full(shape, 7, dtype), slots


def check_keys(found, wanted):
    """Bytes that the reference left alone are untouched, and dequantised numbers are as close as two roundings of nearly equal ones."""
    assert (found.codes[(wanted.codes == UNWRITTEN).all(axis=-1)] == UNWRITTEN).all()
    if wanted.format.is_float:
        ours, theirs = (dequantize_reference(cache.codes.swapaxes(1, 2), wanted.scales, wanted.format) for cache in (found, wanted))
        step = np.maximum(np.abs(theirs) / 2 ** (2 if wanted.format.name == "fp8_e5m2" else 3), np.nanmax(np.abs(theirs)) * 2**-9)
    else:
        ours, theirs = (
            dequantize_reference(cache.codes.swapaxes(1, 2), cache.scales.swapaxes(1, 2), wanted.format) for cache in (found, wanted)
        )
        written = (wanted.codes != UNWRITTEN).any(axis=-1)
        ours_pairs, wanted_pairs = (cache.scales[written].astype(np.float32) for cache in (found, wanted))
        assert (np.abs(ours_pairs - wanted_pairs) <= 2.0**-9 * np.abs(wanted_pairs) + 1e-6).all()  # the next float16 at most
        step = np.repeat(wanted.scales.swapaxes(1, 2)[..., 0].astype(np.float32), wanted.format.group_size, axis=-1)
    error = np.abs(ours - theirs)
    assert (error <= 1.05 * step + 1e-3).all()
    assert (error > 0.5 * step).mean() < 0.02  # only a number on the edge may have another code
