"""Caches to append to: shuffled slots, some of them -1, in caches that are NaN all over and must stay so elsewhere."""

from dataclasses import dataclass

import numpy as np

from minllm.kernels.kv.append import append, append_reference
from minllm.kernels.kv.copy_blocks import copy_blocks, copy_blocks_of_layers, copy_blocks_reference
from minllm.kernels.kv.layout import layer_of
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append, qkv_rope_append_reference
from minllm.kernels.rope.rotate import rope_table
from tests.kernels.guarded import Guarded, assert_close, bits, poisoned, random
from tests.kernels.normalization.oracles import rms_norm_of
from tests.kernels.rope.oracles import frequencies, turned


@dataclass(frozen=True)
class AppendCase:
    """`tokens` tokens, every third without a slot, into blocks of `block_size` slots."""

    tokens: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    skip: bool = True  # every third token has slot -1
    layers: int = 0  # layers of a token that lie side by side in the cache; 0: each layer has a cache of its own


@dataclass(frozen=True)
class QkvCase(AppendCase):
    """The fused step: `heads` query heads, `rotary_dim` components turned, and QK norm or not."""

    heads: int = 4
    rotary_dim: int = 0
    interleaved: bool = False
    norm: bool = False
    magnitude: float = 1.0


APPEND_CASES = (
    AppendCase(1, 1, 1, 1, skip=False),
    AppendCase(5, 3, 7, 4),
    AppendCase(4, 2, 40),
    AppendCase(1, 1, 129, skip=False),
    AppendCase(4, 1, 8, 1),
    AppendCase(4, 2, 8, 2, layers=3),
    AppendCase(3, 1, 7, 2, layers=2),
    AppendCase(1, 9, 128, skip=False),  # 144 vectors of 8, a block has 128 threads
)
QKV_CASES = (
    QkvCase(1, 1, 2, 1, skip=False, heads=1, rotary_dim=2),
    QkvCase(4, 2, 64, heads=6, rotary_dim=64),
    QkvCase(2, 2, 64, heads=4, rotary_dim=64, interleaved=True, norm=True),
    QkvCase(1, 2, 128, skip=False, heads=2, rotary_dim=128, norm=True),
    QkvCase(1, 3, 128, skip=False, heads=45, rotary_dim=128, norm=True),  # several blocks a token
    QkvCase(2, 2, 64, 4, heads=66, rotary_dim=64),  # threads without a head, or without one that turns
    QkvCase(4, 1, 80, 8, heads=3, rotary_dim=32, norm=True),
    QkvCase(1, 1, 40, heads=2, rotary_dim=40, interleaved=True),
    QkvCase(3, 2, 7, 2, heads=2, rotary_dim=6, norm=True),
    QkvCase(2, 1, 64, heads=1),
    QkvCase(4, 2, 16, 2, heads=4, rotary_dim=16, layers=3),
    QkvCase(3, 2, 7, 2, heads=2, rotary_dim=6, layers=2),
    QkvCase(1, 1, 1, heads=1, norm=True),
    QkvCase(1, 1, 16, heads=3, rotary_dim=16, norm=True, magnitude=1e4),
)
APPEND_GPU_CASES = APPEND_CASES + (AppendCase(2049, 8, 128), AppendCase(130, 5, 67))
QKV_GPU_CASES = QKV_CASES + (
    QkvCase(2049, 8, 64, heads=32, rotary_dim=64),
    QkvCase(130, 8, 128, heads=64, rotary_dim=128, norm=True),
    QkvCase(33, 2, 256, heads=7, rotary_dim=64, interleaved=True),
)


def empty_caches(case, dtype, device):
    """A slot for each token, shuffled, and guarded caches of more blocks than needed, all NaN."""
    blocks = -(-case.tokens // case.block_size) + 2
    slots = np.random.default_rng(7).permutation(blocks * case.block_size)[: case.tokens].astype(np.int32)
    if case.skip:
        slots[::3] = -1
    shape = (blocks, case.block_size, case.kv_heads, case.head_dim)
    if case.layers:
        return slots, OneOfLayers(device, shape, dtype, case.layers), OneOfLayers(device, shape, dtype, case.layers)
    return slots, poisoned(device, shape, dtype), poisoned(device, shape, dtype)


class OneOfLayers:
    """The last layer of a guarded cache in which all layers of a token lie side by side; the others must stay NaN."""

    def __init__(self, device, shape, dtype, layers):
        self.guarded = poisoned(device, (*shape[:2], layers, *shape[2:]), dtype)
        self.array = layer_of(self.guarded.array, layers - 1)
        self.before = self.guarded.before[:, :, -1]

    def result(self):
        """The layer's contents on the host, once the other layers and the bands were found untouched."""
        after = self.guarded.result()
        others = after[:, :, :-1]
        np.testing.assert_array_equal(bits(others), bits(np.full_like(others, np.nan)))
        return np.ascontiguousarray(after[:, :, -1])


def check_cache(cache, slots, oracle, dtype):
    """The written slots hold `oracle` [T, kv_heads, head_dim], and all others are still NaN."""
    by_slot = cache.reshape(-1, *cache.shape[2:])
    written = slots >= 0
    assert_close(by_slot[slots[written]], oracle[written], dtype)
    others = np.delete(by_slot, slots[written], axis=0)
    np.testing.assert_array_equal(bits(others), bits(np.full_like(others, np.nan)))


def check_append(case, dtype, device):
    """The reference and the kernel: exact copies, and nothing else touched."""
    key, value = random((2, case.tokens, case.kv_heads, case.head_dim), dtype, 0)
    slots, key_cache, value_cache = empty_caches(case, dtype, device)
    append(*map(device.array, (key, value)), key_cache.array, value_cache.array, device.array(slots))
    check_cache(key_cache.result(), slots, key.astype(np.float64), dtype)
    check_cache(value_cache.result(), slots, value.astype(np.float64), dtype)

    expected = [np.full(key_cache.result().shape, np.nan, dtype) for _ in range(2)]
    append_reference(key, value, *expected, slots)
    np.testing.assert_array_equal(bits(expected[0]), bits(key_cache.result()))
    np.testing.assert_array_equal(bits(expected[1]), bits(value_cache.result()))


def check_qkv_rope_append(case, dtype, device):
    """The reference and the kernel against norms and complex turns in float64."""
    columns = (case.heads + 2 * case.kv_heads) * case.head_dim
    qkv = random((case.tokens, columns), dtype, 0, case.magnitude)
    q_norm, k_norm = random((2, case.head_dim), dtype, 1) if case.norm else (None, None)
    positions = np.random.default_rng(2).integers(0, 50, case.tokens).astype(np.int32)
    cos_sin = rope_table(50, case.rotary_dim, frequencies(case.rotary_dim)) if case.rotary_dim else None
    slots, key_cache, value_cache = empty_caches(case, dtype, device)

    heads = qkv.astype(np.float64).reshape(case.tokens, -1, case.head_dim)
    query, key, value = np.split(heads, [case.heads, case.heads + case.kv_heads], axis=1)
    if case.norm:
        query, key = (
            rms_norm_of(x.reshape(-1, case.head_dim), weight, 1e-6).reshape(x.shape) for x, weight in ((query, q_norm), (key, k_norm))
        )
    query, key = (turned(x, positions, case.rotary_dim, case.interleaved) for x in (query, key))

    options = dict(cos_sin=cos_sin, q_norm=q_norm, k_norm=k_norm)
    expected = [np.full(key_cache.array.shape, np.nan, dtype) for _ in range(2)]
    result = qkv_rope_append_reference(
        qkv, positions, slots, *expected, case.heads, case.kv_heads, interleaved=case.interleaved, epsilon=1e-6, **options
    )
    assert_close(result, query, dtype)
    check_cache(expected[0], slots, key, dtype)
    check_cache(expected[1], slots, value, dtype)

    out = poisoned(device, query.shape, dtype)
    options = {name: None if array is None else device.array(array) for name, array in options.items()}
    arrays = [*map(device.array, (qkv, positions, slots)), key_cache.array, value_cache.array, out.array]
    qkv_rope_append(*arrays, interleaved=case.interleaved, epsilon=1e-6, **options)
    assert_close(out.result(), query, dtype)
    check_cache(key_cache.result(), slots, key, dtype)
    check_cache(value_cache.result(), slots, value, dtype)


@dataclass(frozen=True)
class CopyCase:
    """Every third block of a cache [blocks, *shape] to the one after it, in a shuffled order of pairs."""

    blocks: int
    shape: tuple[int, ...]


COPY_CASES = (
    CopyCase(3, (1, 1, 1)),
    CopyCase(7, (4, 3, 7)),
    CopyCase(4, (16, 2, 40)),
    CopyCase(3, (5, 1, 129)),
    CopyCase(5, (16, 5, 64)),  # more vectors than one block of threads copies
    CopyCase(3, (2050, 1)),  # more bytes than one block of threads copies
)
COPY_GPU_CASES = COPY_CASES + (CopyCase(130, (16, 8, 128)), CopyCase(3, (4096, 8, 64)), CopyCase(20, (16, 5, 67)))


def check_copy_blocks(case, dtype, device):
    """The reference and the kernel: exact copies, and nothing else touched."""
    before = random((case.blocks, *case.shape), dtype, 0)
    sources = np.random.default_rng(1).permutation(np.arange(0, case.blocks - 1, 3))
    copies = np.stack([sources, sources + 1], axis=1).astype(np.int32)
    expected = before.copy()
    expected[sources + 1] = before[sources]

    cache = Guarded(device, before)
    copy_blocks(cache.array, device.array(copies))
    np.testing.assert_array_equal(bits(cache.result()), bits(expected))
    copy_blocks_reference(before, copies)
    np.testing.assert_array_equal(bits(before), bits(expected))


def check_copy_blocks_of_layers(case, layers, dtype, device):
    """Layers to other blocks of their own, and to another array with more or fewer blocks."""
    before = random((layers, case.blocks, *case.shape), dtype, 0)
    order = np.random.default_rng(1).permutation(case.blocks)
    half = case.blocks // 2
    copies = np.stack([order[:half], order[half : 2 * half]], axis=1).astype(np.int32)
    expected = before.copy()
    for layer in expected:
        copy_blocks_reference(layer, copies)
    cache = Guarded(device, before)
    copy_blocks_of_layers(cache.array, device.array(copies))
    np.testing.assert_array_equal(bits(cache.result()), bits(expected))

    expected = random((layers, half + 1, *case.shape), dtype, 2)
    other = Guarded(device, expected)
    expected[:, 1:] = before[:, order[:half]]
    outward = np.stack([order[:half], 1 + np.arange(half)], axis=1).astype(np.int32)
    copy_blocks_of_layers(device.array(before), device.array(outward), to=other.array)
    np.testing.assert_array_equal(bits(other.result()), bits(expected))
