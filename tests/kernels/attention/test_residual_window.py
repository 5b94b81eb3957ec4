"""Codes and recent keys together, simulated, against float64 attention over what each row must see."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.flash_attention_2 import quantized as flash_attention_2_quantized
from minllm.kernels.attention.residual_window import residual_window
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_tensor_core import split_tensor_core
from minllm.kernels.attention.split_tensor_core.shape import SplitShape
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16
from tests.kernels.attention.window_cases import WindowCase, make_window_arrays
from tests.kernels.attention.window_runs import run_window

R, G = 32, 32
ROWS = (1,) * 8
EDGES = (1, R - 1, R, R + 1, R + G - 1, R + G, 0, 3 * G + R + 5)  # context lengths: the first code comes with R + G keys
DECODES = [
    WindowCase(ROWS[:3], (64, 0, 133), "int8", heads=2, kv_heads=1, dtype=BFLOAT16),
    WindowCase(ROWS[:3], (40, 97, 130), "int4", R, heads=8, kv_heads=1, head_dim=64, block_size=64, sliding_window=50, dtype=FLOAT16),
    WindowCase(ROWS, EDGES, heads=2, kv_heads=1, dtype=BFLOAT16),
    WindowCase(ROWS[:2], (165, 130), heads=9, kv_heads=1, head_dim=96, sliding_window=90, block_size=64, dtype=FLOAT16),
    WindowCase(ROWS[:2], (161, 64), "fp8_e4m3", 64, heads=1, kv_heads=1, head_dim=80, dtype=BFLOAT16, block_size=16),
]
PROMPTS = [
    WindowCase((66, 1, 0), (66, 96, 5), "int8", heads=1, kv_heads=1, dtype=BFLOAT16),
    WindowCase((36,), (100,), "int4", R, heads=2, kv_heads=1, sliding_window=45, dtype=FLOAT16),
    WindowCase((40, 0, 2), (97, 7, 140), heads=2, kv_heads=1, block_size=64, dtype=BFLOAT16),
    WindowCase((3,), (170,), heads=2, kv_heads=1, head_dim=96, sliding_window=100, dtype=FLOAT16),
    WindowCase((3, 0), (70, 0), "fp8_e5m2", 64, heads=1, kv_heads=1, head_dim=80, dtype=BFLOAT16, block_size=16),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of few warps and small tiles: quick to simulate, and short contexts cross their edges."""
    monkeypatch.setattr(split_quantized, "shape_of", lambda _, form, __: SplitShape(2, 32 if form.keys_by_channel else 16, 2, 1, turns=2))
    monkeypatch.setattr(split_tensor_core, "shape_of", lambda *_: SplitShape(1, 16, 2, 1))
    for module in (flash_attention_2, flash_attention_2_quantized):
        monkeypatch.setattr(module, "tiles_for", lambda *_: (16, 16, 1))


@pytest.mark.detected("case.sliding_window", "case.dtype")
@pytest.mark.parametrize("case", DECODES, ids=str)
def test_decode_steps(device, case):
    run_window(device, case)


@pytest.mark.parametrize("shape", [SplitShape(2, 32, 2, 1, tensor_copies=True, turns=2), SplitShape(1, 32, 3, 1, turns=2)], ids=str)
def test_tiles_that_tma_fetches(device, monkeypatch, shape):
    """Of heads of 128; the sliding window begins within a group."""
    monkeypatch.setattr(split_quantized, "shape_of", lambda *_: shape)
    run_window(device, WindowCase(ROWS[:1], (170,), heads=4, kv_heads=1, head_dim=128, sliding_window=150, dtype=BFLOAT16))


@pytest.mark.detected("case.sliding_window", "case.dtype")
@pytest.mark.parametrize("case", PROMPTS, ids=str)
def test_prompts(device, case):
    run_window(device, case)


def test_what_it_does_not_take():
    arrays = make_window_arrays(DECODES[1])

    def refused(match, window=R, **changes):
        given = {name: getattr(arrays, name) for name in list(arrays.__dataclass_fields__)[:10]} | dict(out=np.zeros_like(arrays.query))
        with pytest.raises(KernelArgumentError, match=match):
            residual_window.attention(**(given | changes), scale=0.1, residual_window=window, max_query_len=1)

    refused("a positive multiple of 32", window=0)
    refused("a multiple of 32", window=33)
    refused("not float32", query=arrays.query.astype(np.float32))
    refused("key_cache is not quantised", key_cache=arrays.recent_key)
    refused(r"must have \(False, False\)", key_cache=replace(arrays.key_cache, by_channel=True))
    refused("one dtype", recent_key=arrays.recent_key.astype(np.float32))
    refused("recent_lens|context_lens", recent_lens=arrays.recent_lens[:2])


def test_keys_by_channel_need_a_window():
    arrays = make_window_arrays(DECODES[2])
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, np.zeros_like(arrays.query))
    batch = (arrays.query_start, arrays.context_lens, arrays.block_tables, 0.1)
    with pytest.raises(KernelArgumentError, match="kivi_int4 keeps its newest keys as they are"):
        flash_attention_2_quantized.attention(*inputs, *batch)
