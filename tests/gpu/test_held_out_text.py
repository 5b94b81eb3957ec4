"""The bundled models predict the whole held-out text as well as they were trained to, in bf16, through our own kernels."""

import lzma
from importlib import resources

import pytest

from minllm import LLM, held_out_text
from tests.engine.bits_per_byte import bits_per_byte
from tests.gpu.agreement import KV_CACHE_BYTES


@pytest.mark.parametrize("name, allowed", [("bundled", 0.83), ("draft", 1.15)])
def test_bits_per_byte(name, allowed):
    directory = resources.files("minllm") / "data/models" / name
    with LLM(str(directory), device="cuda", dtype="bfloat16", kv_cache_memory_bytes=KV_CACHE_BYTES) as llm:
        measured = bits_per_byte(llm, held_out_text())
    data = held_out_text().encode()
    compressed = len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) * 8 / len(data)
    assert measured < allowed < compressed
