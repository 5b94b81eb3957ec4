"""Launches that every variant of the table serves, found by walking it: a new variant is tested without another entry."""

from minllm.catalogue.attention.paged import attention
from minllm.catalogue.rows import BFLOAT16, FLOAT16, FLOAT32
from minllm.kernels.attention import VARIANTS

HAVE_SMALL_TILES = ("flash_attention_2", "flash_attention_3")  # and launches of their own, for prompts
OPTIONS = {"flash_attention_1": dict(warps=2)}
# (new tokens, keys, heads, KV heads, head_dim, dtype) and options of prompts, whole and in chunks.
PROMPTS = (
    (1, 1, 2, 2, 8, FLOAT32, {}),
    (13, 13, 8, 1, 8, BFLOAT16, dict(block_size=8)),
    ((2, 3), (2, 31), 6, 2, 16, BFLOAT16, {}),
    (5, 67, 2, 2, 16, BFLOAT16, dict(sliding_window=40)),
    ((17, 0, 1), (33, 4, 0), 2, 2, 40, FLOAT16, dict(block_size=1)),
    (5, 67, 2, 2, 16, FLOAT32, dict(block_size=256, sliding_window=7)),
    (4, 2, 2, 2, 8, FLOAT16, {}),  # two rows before the first key: they see nothing
    (3, 40, 2, 2, 16, BFLOAT16, dict(magnitude=200.0)),  # scores beyond 1e5
)
STEP = ((1, 1, 1), (3, 0, 21))  # new tokens and keys; a padding sequence among them


def small():
    """Prompts and decode steps of all variants; the first one in bfloat16 is of one sequence."""
    for name in VARIANTS.names():
        if not VARIANTS.entry(name).takes_rows(17):
            yield attention(name, 1, 20, head_dim=16)
        elif name not in HAVE_SMALL_TILES:
            for *sizes, options in PROMPTS:
                yield attention(name, *sizes, **options, **OPTIONS.get(name, {}))
        yield attention(name, *STEP, head_dim=8)
