"""The cases of the attention tests: tiny ones with odd edges, for the simulator and a GPU, and those of real sizes, for a GPU only."""

import ml_dtypes
import numpy as np

from minllm.kernels.attention.flash_attention_3.tiles import TileShape
from minllm.kernels.attention.split_tensor_core.shape import SplitShape
from tests.kernels.attention.cases import AttentionCase

BFLOAT16, FLOAT16 = ml_dtypes.bfloat16, np.float16

# Prompts, whole and in chunks, for the variants that take any number of new tokens; and their decode steps.
LADDER_CASES = [
    AttentionCase((1,), (1,), heads=2, head_dim=8),
    AttentionCase((2, 3), (2, 31), heads=6, head_dim=16, dtype=BFLOAT16),
    AttentionCase((17, 0, 1), (33, 4, 0), heads=2, kv_heads=2, head_dim=40, dtype=FLOAT16, block_size=1),
    AttentionCase((13,), (13,), heads=8, kv_heads=1, head_dim=8, dtype=BFLOAT16, block_size=8),
    AttentionCase((5,), (67,), heads=2, head_dim=16, sliding_window=7, block_size=256),
    AttentionCase((5,), (67,), heads=2, head_dim=16, sliding_window=40, dtype=BFLOAT16),
    AttentionCase((4,), (2,), heads=2, head_dim=8, dtype=FLOAT16),  # two rows before the first key: they see nothing
    AttentionCase((3,), (40,), heads=2, head_dim=16, dtype=BFLOAT16, magnitude=200.0),  # logits beyond 1e5
]

# FlashAttention-2, with tiles small enough that a few tokens cross their edges.
TILES = (16, 16, 1)  # query rows, keys, warps
FLOAT32_TILES = (4, 8, 2, 2)  # 8 query rows, 16 keys
TENSOR_CORE_CASES = [
    AttentionCase((1,), (1,), heads=2, head_dim=16, dtype=BFLOAT16),
    AttentionCase((2,), (2,), heads=2, head_dim=16, dtype=FLOAT16),
    AttentionCase((15,), (37,), heads=2, head_dim=40, dtype=BFLOAT16),  # 40 is padded to 48
    AttentionCase((16,), (16,), heads=2, head_dim=8, dtype=BFLOAT16, block_size=8),
    AttentionCase((17,), (31,), heads=2, head_dim=16, dtype=FLOAT16, block_size=1),
    AttentionCase((29,), (29,), heads=4, kv_heads=4, head_dim=16, dtype=BFLOAT16, block_size=256),
    AttentionCase((3, 0, 17, 1), (5, 4, 17, 0), heads=6, head_dim=16, dtype=BFLOAT16),  # a padding sequence, and one that rests
    AttentionCase((7,), (50,), heads=8, kv_heads=1, head_dim=16, dtype=BFLOAT16),
    AttentionCase((18,), (67,), heads=2, head_dim=16, dtype=BFLOAT16, sliding_window=7),
    AttentionCase((5,), (67,), heads=2, head_dim=16, dtype=FLOAT16, sliding_window=33, block_size=5),
    AttentionCase((5,), (40,), heads=2, head_dim=16, dtype=FLOAT16, sliding_window=1),
    AttentionCase((4,), (2,), heads=2, head_dim=16, dtype=BFLOAT16),  # two rows before the first key: they see nothing
    AttentionCase((9,), (30,), heads=2, head_dim=16, dtype=BFLOAT16, magnitude=200.0),  # logits beyond 1e5
]
FLOAT32_CASES = [
    AttentionCase((1,), (1,), heads=2, head_dim=8),
    AttentionCase((7,), (18,), heads=6, head_dim=40, block_size=1),
    AttentionCase((8, 9), (8, 16), heads=2, head_dim=16, block_size=8),
    AttentionCase((3, 0, 2, 1), (5, 4, 17, 0), heads=4, kv_heads=4, head_dim=8),
    AttentionCase((11,), (37,), heads=2, head_dim=8, sliding_window=6, block_size=256),
    AttentionCase((4,), (2,), heads=2, head_dim=8),
    AttentionCase((3,), (20,), heads=2, head_dim=16, magnitude=200.0),
]
TILE_SHAPES = [(32, 16, 1), (32, 32, 2), (16, 48, 1), (16, 16, 1)]
TILE_SHAPE_CASES = [
    AttentionCase((35,), (41,), heads=2, head_dim=16, dtype=BFLOAT16),
    AttentionCase((3,), (19,), heads=2, head_dim=144, dtype=BFLOAT16),  # from 16 rows a warp on, Q no longer stays in registers
]

# FlashAttention-3, with the smallest tiles: 64 rows a consumer.
HOPPER_CASES = [
    (AttentionCase((1,), (1,), heads=2, head_dim=16, dtype=BFLOAT16, block_size=8), TileShape(16, 1, 16)),
    (AttentionCase((4, 0, 3), (2, 5, 0), heads=2, kv_heads=2, head_dim=8, dtype=FLOAT16, block_size=8), TileShape(8, 1, 16)),
    (AttentionCase((130, 3), (150, 40), heads=1, kv_heads=1, dtype=BFLOAT16, block_size=8), TileShape(64, 2, 32)),  # two pages a thread
    (AttentionCase((65,), (67,), heads=2, kv_heads=1, head_dim=40, dtype=FLOAT16, block_size=256), TileShape(40, 1, 32)),  # one block
    (AttentionCase((129,), (161,), heads=1, kv_heads=1, head_dim=80, dtype=BFLOAT16, block_size=64), TileShape(80, 3, 32)),
    (AttentionCase((70,), (131,), heads=2, kv_heads=1, head_dim=96, dtype=FLOAT16, sliding_window=37), TileShape(96, 1, 32)),
    (AttentionCase((9,), (40,), heads=2, kv_heads=1, head_dim=16, dtype=BFLOAT16, sliding_window=1), TileShape(16, 1, 32)),
    (AttentionCase((33,), (33,), heads=2, kv_heads=1, head_dim=256, dtype=BFLOAT16, block_size=32), TileShape(256, 1, 16)),
    (AttentionCase((9,), (30,), heads=2, head_dim=16, dtype=BFLOAT16, magnitude=200.0), TileShape(16, 1, 16)),  # logits beyond 1e5
    (AttentionCase((9,), (30,), heads=2, head_dim=16, dtype=FLOAT16, magnitude=50.0), TileShape(16, 1, 16)),
]

# Decode steps.
SPLIT_CASES = [  # with the number of splits
    (AttentionCase((1,), (1,), heads=2, head_dim=16, dtype=BFLOAT16), 1),
    (AttentionCase((1, 1, 1), (31, 0, 33), heads=6, head_dim=16, dtype=BFLOAT16), 3),
    (AttentionCase((1,), (97,), heads=2, head_dim=40, dtype=FLOAT16, block_size=8), 2),  # 5 chunks of 16 bytes on 8 lanes
    (AttentionCase((1,), (37,), heads=8, kv_heads=1, head_dim=8, dtype=BFLOAT16, block_size=1), 5),  # a key is one lane's
    (AttentionCase((1,), (40,), heads=4, kv_heads=4, head_dim=8, block_size=256), 2),
    (AttentionCase((1, 1), (3, 41), heads=18, kv_heads=2, head_dim=16), 2),  # 9 heads a group: two blocks, one head too many
    (AttentionCase((1,), (67,), heads=2, head_dim=16, dtype=BFLOAT16, sliding_window=7), 3),
    (AttentionCase((1,), (67,), heads=2, head_dim=16, dtype=FLOAT16, sliding_window=50, block_size=5), 2),
    (AttentionCase((1, 0, 1), (5, 9, 12), heads=2, head_dim=16, dtype=BFLOAT16), 2),  # the second sequence brings no token
    (AttentionCase((1,), (30,), heads=2, head_dim=16, dtype=BFLOAT16, magnitude=200.0), 2),
    (AttentionCase((1,), (5,), heads=2, kv_heads=2, head_dim=136), 2),  # 34 chunks of float32 on 32 lanes: two each
    (AttentionCase((1,), (9,), heads=2, head_dim=256, dtype=BFLOAT16), 1),
]

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
    ("materialized", STRIDED_PROMPT, {}, {}),
    ("flash_attention_1", STRIDED_PROMPT, {}, {}),
    ("flash_attention_2", STRIDED_PROMPT, dict(tiles=TILES), {}),
    ("flash_attention_2", STRIDED_PROMPT.with_dtype(np.float32), dict(tiles=FLOAT32_TILES), {}),
    ("flash_attention_3", STRIDED_PROMPT, dict(shape=TileShape(16, 1, 16)), {}),
    ("split_kv", STRIDED_STEP, dict(splits=2, warps=1), dict(splits=2)),
    ("split_tensor_core", STRIDED_STEP, dict(splits=2), dict(splits=2)),
    ("split_tensor_core", STRIDED_BOXES, TENSOR_COPY_OPTIONS[0], TENSOR_COPY_OPTIONS[0]),
    ("split_unified_maximum", STRIDED_STEP, dict(splits=2), dict(splits=2)),
]


def in_16_bits(case):
    """The case in bfloat16 where it is in float32."""
    return case.with_dtype(BFLOAT16) if case.dtype is np.float32 else case


# Real sizes: prompts, chunks of prompts, ragged batches.
REAL_PROMPTS = [
    AttentionCase((512,), (512,), heads=32, kv_heads=8, dtype=BFLOAT16),
    AttentionCase((1, 5, 129), (1328, 18, 463), heads=8, kv_heads=2, head_dim=128, dtype=FLOAT16),
    AttentionCase((257,), (2011,), heads=6, kv_heads=2, head_dim=40, dtype=BFLOAT16, block_size=8),
    AttentionCase((127, 128, 131, 0, 1), (127, 300, 131, 5, 0), heads=4, kv_heads=4, head_dim=80, dtype=BFLOAT16, block_size=1),
    AttentionCase((61, 67), (509, 67), heads=8, kv_heads=1, head_dim=96, dtype=FLOAT16, block_size=256),
    AttentionCase((130,), (1031,), heads=4, kv_heads=2, head_dim=256, dtype=BFLOAT16, block_size=2048),
    AttentionCase((300,), (1500,), heads=8, kv_heads=2, head_dim=128, dtype=BFLOAT16, sliding_window=257),
    AttentionCase((65,), (999,), heads=4, kv_heads=2, dtype=FLOAT16, sliding_window=1),
    AttentionCase((100,), (700,), heads=4, kv_heads=2, dtype=BFLOAT16, magnitude=100.0),
    AttentionCase((1031,), (1031,), heads=71, kv_heads=1, dtype=BFLOAT16),  # enough blocks for the large tiles
    AttentionCase((129,), (613,), heads=6, kv_heads=2, head_dim=80),
    AttentionCase((1, 65), (77, 65), heads=4, kv_heads=2, head_dim=256, block_size=1),
    AttentionCase((200,), (900,), heads=4, kv_heads=2, head_dim=128, sliding_window=100),
]
REAL_DECODES = [
    AttentionCase((1,), (600,), heads=32, kv_heads=8, dtype=BFLOAT16),
    AttentionCase((1,), (32771,), heads=32, kv_heads=8, head_dim=128, dtype=BFLOAT16),
    AttentionCase((1,) * 65, tuple(range(0, 65 * 61, 61)), heads=8, kv_heads=2, head_dim=128, dtype=FLOAT16),
    AttentionCase((1,) * 65, tuple(range(0, 65 * 7, 7)), heads=32, kv_heads=8, head_dim=64, dtype=BFLOAT16),  # many blocks per SM
    AttentionCase((1,) * 5, (1, 17, 1024, 4099, 0), heads=28, kv_heads=4, head_dim=128, dtype=BFLOAT16),
    AttentionCase((1, 1), (8191, 33), heads=71, kv_heads=1, dtype=BFLOAT16, block_size=1),
    AttentionCase((1, 1), (511, 2049), heads=64, kv_heads=8, head_dim=80, dtype=FLOAT16, block_size=256),
    AttentionCase((1,), (5003,), heads=6, kv_heads=2, head_dim=40, dtype=BFLOAT16, block_size=8),
    AttentionCase((1,), (1999,), heads=16, kv_heads=2, head_dim=256, dtype=BFLOAT16),
    AttentionCase((1,), (9001,), heads=8, kv_heads=2, head_dim=128, dtype=BFLOAT16, sliding_window=4096),
    AttentionCase((1,), (700,), heads=4, kv_heads=2, dtype=BFLOAT16, magnitude=100.0),
    AttentionCase((1, 1), (4001, 129), heads=32, kv_heads=8, head_dim=128),
    AttentionCase((1,), (777,), heads=6, kv_heads=2, head_dim=256, block_size=1),
]
