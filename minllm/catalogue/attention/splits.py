"""The launches of split_kv and fixed_split: blocks that divide the keys of a row, and a merge of their states."""

import itertools

from minllm.catalogue.attention.paged import BLOCK_SIZE, TENSOR_CORES, attention
from minllm.catalogue.launch import MachineCode
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32
from minllm.kernels.attention.fixed_split.fixed_split import warps_of
from minllm.kernels.attention.split_kv.choice import BLOCKS_PER_SM
from minllm.kernels.matmul.arguments import HALF_DTYPES

GROUP, KV_HEADS = 4, 8  # query heads per KV head
# (new tokens, keys, heads, KV heads, head_dim, dtype, block size, window, magnitude) and splits of decode steps
STEPS = (
    (1, 1, 2, 2, 16, BFLOAT16, BLOCK_SIZE, 0, 1),
    ((1, 1, 1), (31, 0, 33), 6, 2, 16, BFLOAT16, BLOCK_SIZE, 0, 3),
    (1, 97, 2, 2, 40, FLOAT16, 8, 0, 2),  # 5 chunks of 16 bytes on 8 lanes
    (1, 37, 8, 1, 8, BFLOAT16, 1, 0, 5),  # a key is one lane's
    (1, 40, 4, 4, 8, FLOAT32, 256, 0, 2),
    ((1, 1), (3, 41), 18, 2, 16, FLOAT32, BLOCK_SIZE, 0, 2),  # 9 heads a group: two blocks, one head too many
    (1, 67, 2, 2, 16, BFLOAT16, BLOCK_SIZE, 7, 3),
    (1, 67, 2, 2, 16, FLOAT16, 5, 50, 2),
    ((1, 0, 1), (5, 9, 12), 2, 2, 16, BFLOAT16, BLOCK_SIZE, 0, 2),  # the second sequence brings no token
    (1, 30, 2, 2, 16, BFLOAT16, BLOCK_SIZE, 0, 200.0, 2),  # scores beyond 1e5
    (1, 5, 2, 2, 136, FLOAT32, BLOCK_SIZE, 0, 2),  # 34 chunks of float32 on 32 lanes: two each
    (1, 9, 2, 2, 256, BFLOAT16, BLOCK_SIZE, 0, 1),
)
# The same of models.
LARGE = (
    (1, 600, 32, 8, 64, BFLOAT16),
    (1, 32771, 32, 8, 128, BFLOAT16),
    ((1,) * 65, tuple(range(0, 65 * 61, 61)), 8, 2, 128, FLOAT16),
    ((1,) * 65, tuple(range(0, 65 * 7, 7)), 32, 8, 64, BFLOAT16),  # many blocks per SM
    ((1,) * 5, (1, 17, 1024, 4099, 0), 28, 4, 128, BFLOAT16),
    ((1, 1), (8191, 33), 71, 1, 64, BFLOAT16, 1),
    ((1, 1), (511, 2049), 64, 8, 80, FLOAT16, 256),
    (1, 5003, 6, 2, 40, BFLOAT16, 8),
    (1, 1999, 16, 2, 256, BFLOAT16),
    (1, 9001, 8, 2, 128, BFLOAT16, BLOCK_SIZE, 4096),
    (1, 700, 4, 2, 64, BFLOAT16, BLOCK_SIZE, 0, 100.0),
    ((1, 1), (4001, 129), 32, 8, 128, FLOAT32),
    (1, 777, 6, 2, 256, FLOAT32, 1),
)


def step(variant, context, heads, kv_heads, head_dim, dtype=BFLOAT16, **options):
    """The launch of a decode step of one sequence."""
    return attention(variant, 1, context, heads, kv_heads, head_dim, dtype, **options)


def compiled():
    """Decode steps, verification and prompts."""
    for dtype in DTYPES:
        for head_dim, group in ((40, 1), (64, 1), (64, 4), (128, 4), (128, 8), (256, 8)):
            # A lane holds its elements of every query head of a group; with the largest groups only two blocks fit.
            blocks = 2 if head_dim * group >= 1024 else BLOCKS_PER_SM
            launch, name = step("split_kv", 128, group * KV_HEADS, KV_HEADS, head_dim, dtype, splits=2), f"{head_dim}/group_{group}/{dtype}"
            yield MachineCode(f"attention/split_kv/{name}", launch, blocks, ("LDG*128*", "MUFU.EX2"), kernel_name="split_kernel")
        for head_dim in (64, 128, 256):
            launch = step("split_kv", 128, GROUP * KV_HEADS, KV_HEADS, head_dim, dtype, splits=2)
            yield MachineCode(f"attention/split_merge/{head_dim}/{dtype}", launch, blocks=6, kernel_name="merge_kernel")
    for dtype in HALF_DTYPES:
        yield from compiled_fixed_split(dtype)
    for head_dim in (40, 128):
        launch = step("fixed_split", 128, GROUP * KV_HEADS, KV_HEADS, head_dim, parts=2)
        yield MachineCode(f"attention/fixed_split/merge/{head_dim}/bfloat16", launch, blocks=4, kernel_name="merge_splits_kernel")


def compiled_fixed_split(dtype):
    """fixed_split for tiles of 16 rows per warp, in which one block takes all keys of its rows, or parts of them."""
    for head_dim in (40, 64, 128):
        for warps in sorted({warps_of(rows) for rows in (GROUP, 5 * GROUP, 64 * GROUP)}):
            for name, parts in (("parts", 2), ("all_keys", 1)):
                launch = step("fixed_split", 128, GROUP * KV_HEADS, KV_HEADS, head_dim, dtype, parts=parts, warps=warps)
                kernel = launch.dry_run((9, 0))[0]
                code = f"attention/fixed_split/{name}/{head_dim}/{16 * warps}/{dtype}"
                spills = {(12, 0): 4} if (head_dim, warps, parts) == (128, 4, 1) else {}
                blocks = kernel.launch.kernel.options["launch_bounds"][1]
                yield MachineCode(code, launch, blocks, TENSOR_CORES, spills=spills, kernel_name=kernel.name)


def small():
    """Steps of which formulas count the bytes, then sequences of different lengths, windows, and layers side by side."""
    yield step("split_kv", 128, 4, 2, 64, splits=2)
    yield attention("split_kv", (1, 0, 1), (19, 4, 0), 4, 2, 16, FLOAT16, layers=3, splits=2)
    for *sizes, splits in STEPS:  # with one warp a short context fills several splits, and leaves the last ones empty
        yield attention("split_kv", *sizes, splits=splits, warps=1)
    for warps, keys_each in ((1, 1), (2, 3), (4, 2)):
        yield step("split_kv", 101, 2, 2, 32, splits=3, warps=warps, keys_each=keys_each)
    yield step("split_kv", 130, 2, 2, 16)  # the block and the splits that users get
    yield step("fixed_split", 128, 4, 2, 64, parts=2)
    yield attention("fixed_split", (3, 0, 1), (70, 4, 0), 4, 2, 16, FLOAT16, layers=3, parts=2)
    yield attention("fixed_split", 5, 67, 2, 1, 40, sliding_window=33, parts=1)


def large():
    """Decode steps of models, with the splits that users get and with others."""
    for sizes, splits in zip(LARGE, itertools.cycle((None, 1, 7, 256))):
        yield attention("split_kv", *sizes, splits=splits)
