"""The cases of the attention tests: tiny ones with odd edges, for the simulator and a GPU, and those of real sizes, for a GPU only."""

import ml_dtypes
import numpy as np

from minllm.catalogue.attention import prompts, splits
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape
from tests.kernels.attention.cases import AttentionCase

BFLOAT16, FLOAT16 = ml_dtypes.bfloat16, np.float16

# Decode steps.
SPLIT_CASES = [(AttentionCase.of(*sizes), count) for *sizes, count in splits.STEPS]  # with the number of splits
RAGGED_CASES = [  # for blocks that take parts of several heads and sequences
    AttentionCase((1,) * 5, (33, 1, 0, 70, 16), heads=4, head_dim=16, dtype=BFLOAT16),
    AttentionCase((1,) * 35, tuple(5 * i % 37 for i in range(35)), heads=2, head_dim=8, dtype=FLOAT16, block_size=8),  # over 32
    AttentionCase((1, 0, 1, 1), (50, 70, 12, 90), heads=12, kv_heads=1, head_dim=16, dtype=BFLOAT16, sliding_window=30, block_size=32),
    AttentionCase((1, 1), (40, 95), heads=2, kv_heads=1, head_dim=72, dtype=FLOAT16, block_size=5),
]
TENSOR_COPY_CASES = [  # caches of whole blocks of 16 keys, head_dim of whole boxes of 64
    AttentionCase((1,) * 3, (33, 0, 70), heads=8, kv_heads=2, dtype=BFLOAT16),
    AttentionCase((1, 1), (20, 97), heads=2, kv_heads=2, head_dim=128, dtype=FLOAT16, block_size=32),
    AttentionCase((1,), (67,), heads=4, kv_heads=1, dtype=BFLOAT16, sliding_window=30),
    AttentionCase((1,), (40,), heads=2, kv_heads=1, head_dim=256, dtype=BFLOAT16, block_size=48),
]
TENSOR_COPY_OPTIONS = [
    dict(sm_count=3, shape=SplitShape(1, 16, 3, 1, tensor_copies=True)),
    dict(splits=2, shape=SplitShape(2, 32, 2, 1, tensor_copies=True)),
    dict(sm_count=2, shape=SplitShape(2, 16, 4, 1, tensor_copies=True)),
]
SPLIT_SHAPES = [SplitShape(1, 16, 2, 1), SplitShape(2, 16, 3, 1), SplitShape(1, 32, 4, 2)]

# Every variant on caches in which the layers of a token lie side by side: (module, case, options of the launcher, of the workspace).
STRIDED_PROMPT = AttentionCase((3, 0, 2), (18, 4, 2), heads=2, kv_heads=2, head_dim=16, dtype=BFLOAT16, block_size=8)
STRIDED_STEP = AttentionCase((1, 1), (19, 0), heads=4, head_dim=16, dtype=BFLOAT16)
STRIDED_BOXES = AttentionCase((1,), (33,), heads=4, dtype=BFLOAT16)
STRIDED_CASES = [
    ("split_tensor_core", STRIDED_STEP, dict(splits=2), dict(splits=2)),
    ("split_tensor_core", STRIDED_BOXES, TENSOR_COPY_OPTIONS[0], TENSOR_COPY_OPTIONS[0]),
    ("split_unified_maximum", STRIDED_STEP, dict(splits=2), dict(splits=2)),
]


def in_16_bits(case):
    """The case in bfloat16 where it is in float32."""
    return case.with_dtype(BFLOAT16) if case.dtype is np.float32 else case


REAL_PROMPTS, REAL_DECODES = ([AttentionCase.of(*sizes) for sizes in module.LARGE] for module in (prompts, splits))
