"""The launches of attention with a residual window: over codes, over recent keys, and the merge of both."""

import numpy as np

from minllm.catalogue.attention.codes import QUANTISED, bfloat16_step, prefill_flops
from minllm.catalogue.attention.paged import LENS, SLACK, as_sequences, attention, batch_of, lengths, seen_slots
from minllm.catalogue.attention.prompts import SM_COUNT, bounded_blocks
from minllm.catalogue.attention.quantized import WEIGHTS, coded_caches, quantized_attention
from minllm.catalogue.attention.steps import named
from minllm.catalogue.kv.quantized import quantized_caches
from minllm.catalogue.launch import HOPPER, TFLOP_S, TOKENS_US, WIDE, Launch, MachineCode, Measured, Moved, describes, for_tuning, returns
from minllm.catalogue.rows import BFLOAT16, FLOAT16
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.flash_attention_2 import quantized as flash_attention_2_quantized
from minllm.kernels.attention.residual_window import residual_window as launcher
from minllm.kernels.attention.residual_window.reference import attention_with_window_reference, window_start
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_quantized.layout import can_fetch
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.groups import TOKEN_GROUP

GROUP, KV_HEADS, WINDOW, BLOCK_SIZE = 4, 8, 128, 32
FORMATS = (("int8", 128), ("int4", 128), ("fp8_e4m3", 128), ("kivi_int4", 64), ("kivi_int4", 96), ("kivi_int4", 128), ("kivi_int4", 256))
SHORT, LONG = 100, 8192  # tokens of the prompts that are compiled, and of those whose tiles they have
VECTOR = 8  # elements that a thread merges
# (new tokens, keys, format, window, heads, KV heads, head_dim, dtype, sliding window, block size): steps, then chunks of prompts.
STEPS = (
    ((1,) * 3, (64, 0, 133), "int8", 32, 2, 1, 32),
    ((1,) * 3, (40, 97, 130), "int4", 32, 8, 1, 64, FLOAT16, 50, 64),
    ((1,) * 8, (1, 31, 32, 33, 63, 64, 0, 133), "kivi_int4", 32, 2, 1, 32),  # the first code comes with 64 keys
    ((1,) * 2, (165, 130), "kivi_int4", 32, 9, 1, 96, FLOAT16, 90, 64),
    ((1,) * 2, (161, 64), "fp8_e4m3", 64, 1, 1, 80, BFLOAT16, 0, 16),
)
CHUNKS = (
    ((66, 1, 0), (66, 96, 5), "int8", 32, 1, 1, 32),
    (36, 100, "int4", 32, 2, 1, 32, FLOAT16, 45),
    ((40, 0, 2), (97, 7, 140), "kivi_int4", 32, 2, 1, 32, BFLOAT16, 0, 64),
    (3, 170, "kivi_int4", 32, 2, 1, 96, FLOAT16, 100),
    ((3, 1), (70, 0), "fp8_e5m2", 64, 1, 1, 80, BFLOAT16, 0, 16),
)
FETCHED = (1, 170, "kivi_int4", 32, 4, 1, 128, BFLOAT16, 150)  # tiles by TMA; the sliding window begins within a group
# Of 16 heads, 4 KV heads and a window of 128: (new tokens, keys, format, head_dim, sliding window, block size).
LARGE_STEPS, LARGE_CHUNKS = ((1,) * 8, (1, 127, 128, 159, 160, 0, 1501, 700)), ((300, 1, 77, 1), (300, 170, 900, 0))
LARGE = (
    (*LARGE_STEPS, "int8", 128),
    (*LARGE_STEPS, "int4", 256, 500),
    (*LARGE_STEPS, "fp8_e4m3", 64, 0, 16),
    ((1,) * 40, tuple(1 + 37 * i % 900 for i in range(40)), "int8", 128),
    (*LARGE_STEPS, "kivi_int4", 128),
    (*LARGE_STEPS, "kivi_int4", 64, 300, 256),
    (*LARGE_CHUNKS, "kivi_int4", 128, 0, 64),
    (*LARGE_CHUNKS, "kivi_int4", 256, 300),
    (*LARGE_CHUNKS, "kivi_int4", 96),
    (1, 3000, "int4", 128, 0, 64),
    (*LARGE_CHUNKS, "int8", 128),
    (*LARGE_CHUNKS, "int4", 256, 200),
    (*LARGE_CHUNKS, "fp8_e4m3", 80, 0, 16),
)


@describes
def residual_window(
    query_lens: lengths,
    context_lens: lengths,
    form,
    window,
    heads=4,
    kv_heads=2,
    head_dim=64,
    dtype=BFLOAT16,
    sliding_window=0,
    block_size=BLOCK_SIZE,
):
    """Sequence b has query_lens[b] new tokens, and context_lens[b] keys with them; a row reads `window` keys or more as they are."""
    found, scale = kv_format(form, head_dim), head_dim**-0.5
    kept = [max(0, context - int(window_start(context - tokens, window))) for tokens, context in zip(query_lens, context_lens, strict=True)]

    def arrays(noise):
        blocks, lens = batch_of(noise, query_lens, context_lens, block_size)
        stops = window_start(lens["context_lens"] - 1, window)
        seen = seen_slots((blocks, block_size), query_lens, context_lens, lens["block_tables"], sliding_window, stops)
        codes = coded_caches(noise, found, seen, kv_heads)
        blocks, recent = batch_of(noise, query_lens, kept, TOKEN_GROUP)
        shape, rows = (blocks, TOKEN_GROUP, kv_heads, head_dim), (sum(query_lens), heads, head_dim)
        caches = dict(recent_key=noise.array(shape, dtype), recent_value=noise.array(shape, dtype))
        for cache in caches.values():
            cache[~seen_slots(shape[:2], query_lens, kept, recent["block_tables"])] = float("nan")
        caches |= dict(recent_lens=recent["context_lens"], recent_tables=recent["block_tables"])
        return dict(query=noise.array(rows, dtype), **codes, **caches, out=noise.unwritten(rows, dtype), **lens)

    def call(ops, query, recent_key, recent_value, out, query_start, context_lens, block_tables, recent_lens, recent_tables, **codes):
        caches, longest = quantized_caches(found, codes, found.keys_by_channel), max(1, *query_lens)
        shapes = launcher.workspace_shapes(query, caches[0], block_tables, recent_key, recent_tables, longest)
        lens = (query_start, context_lens, block_tables, recent_lens, recent_tables)
        workspace = make_workspace(shapes, ops.empty, ops.zeros)
        launcher.attention(
            query, *caches, recent_key, recent_value, out, *lens, scale, window, sliding_window, longest, workspace, ops.stream
        )

    def reference(query, recent_key, recent_value, out, query_start, context_lens, block_tables, recent_lens, recent_tables, **codes):
        caches = quantized_caches(found, codes, found.keys_by_channel)
        lens = (query_start, context_lens, block_tables, recent_lens, recent_tables)
        return attention_with_window_reference(query, *caches, recent_key, recent_value, *lens, scale, window, sliding_window)

    rows, numbers = sum(query_lens) * heads, sum(query_lens) * heads * head_dim
    asked = dict.fromkeys(("first", "second", "out"), numbers * dtype.itemsize)
    asked |= dict.fromkeys(("first_lse", "second_lse"), numbers // VECTOR * 4)  # every thread asks for both
    moved = {"merge_states_kernel": Moved(asked, dict(first_lse=4 * rows, second_lse=4 * rows))}
    slack = 2 * max(SLACK[dtype], WEIGHTS)  # the parts are rounded before they are merged
    rows = ("query", "out")
    return Launch(arrays, call, returns(("out",), reference), moved, indices=LENS, rows=rows, alone=each_by_itself, slack=slack)


def each_by_itself(tokens, recent_lens, recent_tables, **arrays):
    """The batch in which these rows are sequences of their own, whose recent keys begin where they did."""
    alone = as_sequences(tokens, **arrays)
    sequence = np.searchsorted(arrays["query_start"], tokens, side="right") - 1
    recent = recent_lens[sequence] - (arrays["context_lens"][sequence] - alone["context_lens"])
    return alone | dict(recent_lens=recent, recent_tables=recent_tables[sequence])


def compiled():
    """Prompts and steps over each part, and the merge."""
    for name, head_dim in FORMATS:
        yield from compiled_codes(kv_format(name, head_dim))
    for head_dim in (64, 128, 256):
        yield from compiled_recent(head_dim)
        launch = residual_window(1, SHORT, "int8", 32, GROUP * KV_HEADS, KV_HEADS, head_dim)
        name, contains = f"attention/merge_states/{head_dim}/bfloat16", (*WIDE, "MUFU.EX2")
        yield MachineCode(name, launch, 16, contains, kernel_name="merge_states_kernel")


def compiled_codes(found):
    """Kernels over codes: the tiles of long prompts, and the shapes for few and for many heads."""
    details = f"{found.name}/{found.head_dim}/bfloat16"
    sizes = (found.name, GROUP * KV_HEADS, KV_HEADS, found.head_dim)
    bounds = dict(block_size=BLOCK_SIZE, residual_window=WINDOW, lse=True)
    tiles = flash_attention_2_quantized.tiles_for(found, LONG)
    launch = quantized_attention("flash_attention_2_quantized", SHORT, SHORT, *sizes, **bounds, tiles=tiles)
    yield MachineCode(f"attention/residual_window/codes/prompt/{details}", launch, 1 if tiles[2] > 4 else 2, targets=HOPPER)
    for line_heads in (8, 1024):
        shape = split_quantized.shape_for(found, GROUP, line_heads, tensor_copies=can_fetch(found, BLOCK_SIZE))
        launch = quantized_attention("split_quantized", 1, SHORT, *sizes, **bounds, shape=shape)
        name = f"attention/residual_window/codes/step/{named(shape)}/{details}"
        yield MachineCode(name, launch, shape.blocks, targets=HOPPER)


def compiled_recent(head_dim):
    """Kernels over recent keys: the tiles of long prompts, and a decode step."""
    sizes = (GROUP * KV_HEADS, KV_HEADS, head_dim, BFLOAT16, BLOCK_SIZE)
    tiles = flash_attention_2.tiles_for(head_dim, LONG, 32, 1, SM_COUNT)
    launch = attention("flash_attention_2", SHORT, SHORT, *sizes, lse=True, tiles=tiles, residual_window=WINDOW)
    yield MachineCode(f"attention/residual_window/recent/prompt/{head_dim}/bfloat16", launch, bounded_blocks(launch), targets=HOPPER)
    shape = SplitShape(4, 16, 2 if head_dim == 256 else 4, 1, tensor_copies=True)
    launch = attention("split_tensor_core", 1, SHORT, *sizes, lse=True, shape=shape)
    yield MachineCode(f"attention/residual_window/recent/step/{head_dim}/bfloat16", launch, shape.blocks, targets=HOPPER)


def small():
    """A step of two sequences, then chunks of prompts with padding."""
    yield residual_window((1, 1), (72, 97), "int8", 32, 2, 1)
    yield residual_window(1, 100, "fp8_e4m3", 64, 2, 1, 32)
    yield residual_window((3, 0, 2), (70, 4, 40), "kivi_int4", 32, 2, 1, 32, sliding_window=50)


def large():
    """Batches of models; and the short ones of tests/kernels/attention/test_residual_window.py, in the blocks that users get."""
    for tokens, keys, form, head_dim, *bounds in LARGE:
        yield residual_window(tokens, keys, form, WINDOW, 16, 4, head_dim, BFLOAT16, *bounds)
    for sizes in (*STEPS, *CHUNKS, FETCHED):
        yield residual_window(*sizes)
    for query_lens, context_lens in (((1, 1), (1337, 290)), (100, 400)):
        yield residual_window(query_lens, context_lens, "kivi_int4", WINDOW, 16, 4, 128, FLOAT16)


def measured():
    """Steps of many sequences, in tokens of context per second, then prompts, each with one block of codes per sequence."""
    forms = ("int8", "fp8_e4m3", "kivi_int4")
    others = [(form, 64, 4096, 1) for form in forms] + [(form, *sizes) for form in forms for sizes in ((256, 1024, 1), (1, 4096, 4096))]
    yield from for_tuning(row(*one) for one in others)


def row(form, sequences, context, new, heads=32, kv_heads=8, head_dim=128):
    """The row of `new` tokens per sequence."""
    lens = (new,) * sequences, (context,) * sequences
    launch = residual_window(*lens, form, WINDOW, heads, kv_heads, head_dim, block_size=context)
    case = f"{sequences}x{context}, {heads}/{kv_heads} heads, d {head_dim}, {form}, window {WINDOW}"
    base, item = int(window_start(context - new, WINDOW)), launch.dtype.itemsize
    of_codes = 2 * kv_heads * kv_format(form, head_dim).bytes_per_head
    recent = 2 * sequences * (context - base) * kv_heads * head_dim * item
    if new > 1:
        work = prefill_flops(sequences, new, heads, head_dim)
        set_bytes = sequences * context * of_codes + recent + 4 * sequences * new * heads * head_dim * item
        return Measured(launch, "residual_window", case, "prefill attention", unit=TFLOP_S, work=work, set_bytes=set_bytes, sample=6)
    return Measured(
        launch, "residual_window", case, QUANTISED, unit=TOKENS_US, work=sequences * base * of_codes + recent,
        set_bytes=sequences * context * of_codes, tokens=sequences * context, sample=2,
        rival=bfloat16_step(lens[1], heads, kv_heads, head_dim, context),
    )  # fmt: skip
