"""FlashAttention-2 over quantised caches, simulated, against float64 attention over the numbers that the codes mean."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.choice import choose_quantized
from minllm.kernels.attention.flash_attention_2 import quantized as flash_attention_2_quantized
from minllm.kernels.quantization.cache import allocate
from minllm.kernels.quantization.formats import kv_format
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16
from tests.kernels.attention.cases import AttentionCase
from tests.kernels.attention.quantized_cases import run_quantized

TILES = (16, 16, 1)  # small tiles, so that short prompts cross them
EVERY_FORMAT = ("int8", "int4", "fp8_e4m3", "fp8_e5m2")
CASES = [  # case, format, group_size, tiles
    (AttentionCase((19, 0, 5), (19, 7, 35), heads=2, kv_heads=1, head_dim=32, dtype=BFLOAT16, block_size=8), "int8", None, TILES),
    (AttentionCase((3, 1), (21, 0), heads=4, kv_heads=2, head_dim=64, dtype=FLOAT16, block_size=32), "int4", None, TILES),
    (AttentionCase((17,), (40,), heads=2, kv_heads=1, head_dim=96, dtype=BFLOAT16, sliding_window=9), "int8", 32, (32, 16, 2)),
    (AttentionCase((6,), (33,), heads=1, kv_heads=1, head_dim=96, dtype=FLOAT16, block_size=48), "int4", None, (32, 32, 2)),
    (AttentionCase((5,), (20,), heads=2, kv_heads=1, head_dim=128, dtype=BFLOAT16, block_size=5), "int4", 64, (32, 32, 2)),
    (AttentionCase((4,), (18,), heads=1, kv_heads=1, head_dim=256, dtype=BFLOAT16), "int8", None, TILES),
    (AttentionCase((7,), (30,), heads=1, kv_heads=1, head_dim=80, dtype=FLOAT16), "fp8_e4m3", None, (32, 16, 1)),
]


@pytest.mark.detected("name", "tiles")
@pytest.mark.parametrize(("case", "name", "group_size", "tiles"), CASES, ids=str)
def test_prompts(device, case, name, group_size, tiles):
    run_quantized(device, flash_attention_2_quantized, case, name, group_size, tiles=tiles)


@pytest.mark.detected("name")
@pytest.mark.covering("name", "dtype")
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_every_format(device, name, dtype):
    """A chunk behind a cached prefix, and padding."""
    case = AttentionCase((9, 1, 0), (25, 16, 0), heads=4, kv_heads=2, head_dim=32, dtype=dtype)
    run_quantized(device, flash_attention_2_quantized, case, name, tiles=TILES)


def test_float32_queries_are_refused(device):
    with pytest.raises(KernelArgumentError, match="takes float16 and bfloat16"):
        run_quantized(device, flash_attention_2_quantized, AttentionCase((2,), (2,), head_dim=32, dtype=np.float32), "int8")


def test_decode_steps_go_to_split_quantized_where_scales_are_whole_chunks():
    def cache(name, block_size):
        return allocate(kv_format(name, 64), 1, block_size, 1, np.zeros, np.asarray)

    assert choose_quantized(1, cache("int8", 16)) == choose_quantized(1, cache("fp8", 7)) == "split_quantized"
    assert choose_quantized(1, cache("int4", 6)) == choose_quantized(2, cache("int4", 16)) == "flash_attention_2_quantized"
