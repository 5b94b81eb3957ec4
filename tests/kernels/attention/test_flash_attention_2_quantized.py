"""FlashAttention-2 over quantised caches: what it refuses, and when split_quantized serves in its place."""

import numpy as np
import pytest

from minllm.catalogue.attention.quantized import quantized_attention
from minllm.catalogue.noise import SHORT, Noise
from minllm.errors import KernelArgumentError
from minllm.kernels.attention.choice import choose_quantized
from minllm.kernels.quantization.cache import allocate
from minllm.kernels.quantization.formats import kv_format
from tests.kernels.guarded import FLOAT32
from tests.kernels.launches import HostOps


def test_float32_queries_are_refused():
    launch = quantized_attention("flash_attention_2_quantized", (2,), (2,), "int8", head_dim=32, dtype=FLOAT32)
    with pytest.raises(KernelArgumentError, match="takes float16 and bfloat16"):
        launch.run(HostOps, launch.arrays(Noise(length=SHORT)))


def test_decode_steps_go_to_split_quantized_where_scales_are_whole_chunks():
    def cache(name, block_size):
        return allocate(kv_format(name, 64), 1, block_size, 1, np.zeros, np.asarray)

    assert choose_quantized(1, cache("int8", 16)) == choose_quantized(1, cache("fp8", 7)) == "split_quantized"
    assert choose_quantized(1, cache("int4", 6)) == choose_quantized(2, cache("int4", 16)) == "flash_attention_2_quantized"
