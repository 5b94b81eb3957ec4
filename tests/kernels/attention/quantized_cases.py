"""Batches over quantised caches: the arrays of cases.py quantised, with poison in every slot that no kernel has any business to read."""

from dataclasses import replace

import numpy as np

from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.split_tensor_core.shape import SplitShape
from minllm.kernels.quantization.cache import allocate
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.reference import dequantize_reference, quantize_reference
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16
from tests.kernels.attention.cases import GUARD_ROWS, AttentionCase, check_output, make_arrays

FORMATS = ("int8", "int4", "fp8_e4m3", "fp8_e5m2")
# Case, head_dim's group where it is not the format's own.
EVERY_FORMAT_CASES = [
    AttentionCase((1,), (1,), heads=2, head_dim=32, dtype=BFLOAT16),
    AttentionCase((1,) * 5, (33, 1, 0, 70, 16), heads=4, head_dim=64, dtype=BFLOAT16, block_size=8),
    AttentionCase((1, 0, 1, 1), (50, 70, 12, 90), heads=12, kv_heads=1, head_dim=32, dtype=FLOAT16, sliding_window=30, block_size=32),
    AttentionCase((1,), (45,), heads=4, kv_heads=1, head_dim=96, dtype=BFLOAT16, block_size=48),
]
FORMAT_CASES = [  # (case, format, group size)
    (AttentionCase((1,), (37,), heads=8, kv_heads=1, head_dim=80, dtype=BFLOAT16), "int8", None),  # five chunks a row
    (AttentionCase((1, 1), (3, 41), heads=18, kv_heads=2, head_dim=32, dtype=BFLOAT16, block_size=12), "int8", 16),  # 9 heads a group
    (AttentionCase((1,), (35,), heads=2, kv_heads=1, head_dim=96, dtype=FLOAT16), "int4", 32),  # 3 groups: chunks of scales cross keys
    (AttentionCase((1,), (20,), heads=2, kv_heads=1, head_dim=256, dtype=BFLOAT16, block_size=4), "int4", 32),  # two chunks a key
    (AttentionCase((1,), (30,), heads=2, head_dim=32, dtype=BFLOAT16, magnitude=200.0), "int8", None),  # logits beyond 1e5
    (AttentionCase((1,), (30,), heads=2, head_dim=32, dtype=FLOAT16, magnitude=60.0), "int4", None),
    (AttentionCase((1,), (19,), heads=2, head_dim=48, dtype=FLOAT16, block_size=5), "fp8_e4m3", None),
]
FETCHED_CASES = [  # by the copy engine, with a group size: one line a key and several, boxes of a tile and of half a tile
    (AttentionCase((1,) * 5, (33, 1, 0, 70, 16), heads=4, head_dim=128, dtype=BFLOAT16, block_size=16), "int4", 32),
    (AttentionCase((1, 0, 1), (33, 2, 90), heads=9, kv_heads=1, head_dim=64, dtype=FLOAT16, block_size=48, sliding_window=9), "int8", None),
    (AttentionCase((1, 1), (60, 41), heads=4, kv_heads=1, head_dim=128, dtype=BFLOAT16, block_size=32), "fp8_e4m3", None),
    (AttentionCase((1,), (45,), heads=2, kv_heads=1, head_dim=128, dtype=BFLOAT16, block_size=8), "int8", 32),
]
FETCHED_SHAPES = [SplitShape(1, 16, 2, 1, tensor_copies=True, turns=2), SplitShape(2, 32, 3, 1, tensor_copies=True, turns=1)]
SHAPES = [SplitShape(1, 16, 2, 1, turns=2), SplitShape(2, 16, 3, 1, turns=1), SplitShape(1, 32, 4, 2, turns=2)]
POISON = {"int8": 255, "int4": 255, "fp8_e4m3": 0x7F, "fp8_e5m2": 0x7F}  # NaN of the floats
FLOAT_SCALES = (0.02, 3.0)  # KV heads take them in turn


def quantize_case(arrays, name, group_size=None):
    """(key cache, value cache, arrays whose keys and values are what the codes mean), poison where no key of a sequence lies."""
    caches, meanings = [], []
    for plain, rows_of in ((arrays.key_cache, arrays.keys), (arrays.value_cache, arrays.values)):
        num_blocks, block_size, kv_heads, head_dim = plain.shape
        cache = allocate(kv_format(name, head_dim, group_size), num_blocks, block_size, kv_heads, np.zeros, np.array)
        if cache.format.is_float:
            cache.scales[:] = np.resize(FLOAT_SCALES, kv_heads)
        written = ~np.isnan(plain[:, :, 0, 0].astype(np.float32))  # [num_blocks, block_size]
        cache.codes.swapaxes(1, 2)[~written] = POISON[name]
        if not cache.format.is_float:
            cache.scales.swapaxes(1, 2)[~written] = np.nan
        cache.put(np.flatnonzero(written), plain[written])
        caches.append(cache)
        meanings.append([rows if not len(rows) else meaning(rows, cache) for rows in rows_of])
    return *caches, replace(arrays, keys=meanings[0], values=meanings[1])


def meaning(rows, cache):
    """Keys or values [context, kv_heads, head_dim] as a cache holds them."""
    codes, scales = quantize_reference(rows.astype(np.float32), cache.format, cache.scales if cache.format.is_float else None)
    return dequantize_reference(codes, scales, cache.format)


def run_quantized(device, module, case, name, group_size=None, workspace_options=None, **options):
    """Run a decode variant's launcher over caches in format `name`, and judge what it wrote; returns the output."""
    arrays = make_arrays(case)
    key_cache, value_cache, meant = quantize_case(arrays, name, group_size)
    batch = [device.array(getattr(arrays, field)) for field in ("query_start", "context_lens", "block_tables")]
    guarded_out = device.array(arrays.guarded_out)
    shapes = module.workspace_shapes(arrays.query, key_cache, arrays.block_tables, **(workspace_options or {}))
    caches = [replace(cache, codes=device.array(cache.codes), scales=device.array(cache.scales)) for cache in (key_cache, value_cache)]
    module.attention(
        device.array(arrays.query),
        *caches,
        guarded_out[GUARD_ROWS : GUARD_ROWS + len(arrays.query)],
        *batch,
        arrays.scale,
        case.sliding_window,
        max_query_len=max(1, *case.query_lens),
        workspace=make_workspace(
            shapes, lambda *size: device.array(np.full(size[0], np.nan, size[1])), lambda *size: device.array(np.zeros(*size))
        ),
        **options,
    )
    guarded_out = np.asarray(device.host(guarded_out))
    check_output(case, meant, guarded_out)
    return guarded_out[GUARD_ROWS:-GUARD_ROWS]
