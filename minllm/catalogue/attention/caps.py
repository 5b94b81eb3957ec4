"""The launches of attention with a soft cap on its scores."""

from minllm.catalogue.attention.paged import TENSOR_CORES, attention
from minllm.catalogue.attention.prompts import SHORT, bounded_blocks
from minllm.catalogue.launch import MachineCode
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32

GEMMA_2 = 50.0  # the cap of Gemma 2's attention


def compiled():
    """On tensor cores, and in float32; with Gemma 2's cap."""
    for dtype in DTYPES:
        for head_dim in (128, 256):
            launch = attention("soft_capped", SHORT, SHORT, 8, 4, head_dim, dtype, soft_cap=GEMMA_2)
            contains, blocks = (("LDG*128*", "MUFU.EX2"), 1) if dtype == FLOAT32 else (TENSOR_CORES, bounded_blocks(launch))
            yield MachineCode(f"attention/soft_capped/{head_dim}/{dtype}", launch, blocks, contains)


def small():
    """A cap below the scores' size, which changes the weights, and Gemma's, which hardly does; of several sequences, and with a window."""
    yield attention("soft_capped", (1, 1), (37, 3), 2, 1, 40, FLOAT32, block_size=8, soft_cap=0.5)
    yield attention("soft_capped", (7, 1), (7, 20), 2, 1, 24, FLOAT32, block_size=4, sliding_window=5, soft_cap=GEMMA_2)
    for cap in (0.5, GEMMA_2):
        yield attention("soft_capped", (1, 0, 1), (70, 0, 9), 3, 1, 40, BFLOAT16, sliding_window=13, soft_cap=cap)
        yield attention("soft_capped", 9, 41, 2, 2, 16, FLOAT16, block_size=5, soft_cap=cap)
