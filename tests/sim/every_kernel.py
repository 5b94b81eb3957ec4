"""One launch, at a small odd shape, of every kernel of the package, with the formulas for what it moves and computes.

A row of the table is a launch and, for each kernel that it runs and each array, two formulas: `asked`, what the kernel's threads ask for,
and `different`, the bytes that are touched at all, which caches cannot save. Arrays of indices and of one number a row, which the
docstrings leave out, are listed by name, so that no array goes uncounted.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

import minllm.kernels
from minllm.catalogue import one_per_kernel
from minllm.catalogue.launch import Moved
from minllm.catalogue.noise import SHORT, Noise
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.flash_attention_2 import quantized as flash_attention_2_quantized
from minllm.kernels.attention.residual_window import residual_window
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_tensor_core import split_tensor_core
from minllm.kernels.attention.split_tensor_core.shape import SplitShape
from minllm.kernels.kv import qkv_rope_append_vector
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling
from minllm.kernels.matmul.wgmma.wgmma import matmul_silu_and_multiply, matmul_wgmma
from minllm.kernels.quantization.cache import allocate
from minllm.kernels.quantization.formats import kv_format
from tests.kernels.attention.cases import AttentionCase, make_arrays
from tests.kernels.attention.quantized_cases import quantize_case
from tests.kernels.attention.window_cases import WindowCase, make_window_arrays
from tests.kernels.guarded import BFLOAT16, FLOAT32
from tests.kernels.launches import HostOps


@dataclass
class Row:
    """A launch, what each kernel in it is to move, and the names of arrays that formulas leave out."""

    name: str
    run: Callable
    kernels: dict[str, Moved]
    indices: tuple[str, ...] = ()
    stage: str = ""


def row_of(launch, kernels):
    """The row of a launch of the catalogue."""
    arrays = launch.arrays(Noise(length=SHORT))
    formulas = {name: launch.moved_by(name, arrays) for name in kernels}
    return Row(str(launch), partial(launch.run, HostOps, arrays), formulas, launch.indices, launch.stage)


ROWS: dict[str, Row] = {str(launch): row_of(launch, kernels) for launch, kernels in one_per_kernel().items()}

SEVERAL_GPUS = tuple(name for name, one in ROWS.items() if one.stage == "all_reduce")

# Kernels whose float32 results on a GPU differ from the simulator's, and why.
APPROXIMATE = "2**x, log2(x), 1/x and 1/sqrt(x) are approximate on a GPU (PTX ISA: within 2**-22), here exactly rounded"
# Kernels that leave float32 sums of tensor cores in memory; elsewhere rounding to 16 bits hides the difference.
TRUNCATED = "a tensor core drops the bits of a sum that float32 has no room for (Fasi et al. 2021, PeerJ 7:e330), here it is rounded"
ROUNDED = {
    "rms_norm_quantized_kernel": APPROXIMATE,  # its scales
    "silu_quantized_kernel": APPROXIMATE,  # its scales
    "gelu_kernel": APPROXIMATE,
    "softmax_kernel": APPROXIMATE,
    "flash_attention_1_kernel": APPROXIMATE,
    "flash_attention_2_kernel": APPROXIMATE,
    "tree_attention_kernel": APPROXIMATE,
    "perturb_kernel": APPROXIMATE,
    "split_kernel": APPROXIMATE,
    "log_probability_parts_kernel": APPROXIMATE,
    "log_probabilities_of_parts_kernel": APPROXIMATE,
    "distribution_kernel": APPROXIMATE,
    "split_tensor_core_kernel": TRUNCATED,
    "split_quantized_kernel": TRUNCATED,
    "fixed_split_kernel": TRUNCATED,
}
ROUNDING = 2.0**-21  # relative to an array's largest number
# Weights are rounded to float16, which has 11 bits: where a score's last bit turns one of them, the sums that it is in differ by as much.
# By kernel, or by row where the kernel's other rows are the same to the bit. SiLU's approximate 2**x turns the last bit of a bfloat16
# likewise: of one number of 10,560 in the experts' gate and up.
COARSE_ROUNDING = {
    "split_quantized_kernel": 2.0**-12, "flash_attention_2_over_keys_by_channel": 2.0**-12, "grouped_wgmma_kernel": 2.0**-8,
}  # fmt: skip


def row(make):
    """Put what a function returns, (launch, {kernel: Moved}, names of index arrays), into the table under the function's name."""
    run, kernels, *indices = make()
    ROWS[make.__name__] = Row(make.__name__, run, kernels, *indices)
    return make


def numbers(*shape, dtype=BFLOAT16):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def integers(*values):
    return np.array(values, np.int32)


def quantized_caches(name, kv_heads, D):
    found = kv_format(name, D)
    caches = [allocate(found, 2, 4, kv_heads, np.zeros, np.array) for _ in range(2)]
    return replace(caches[0], smoothing=np.ones((3, kv_heads, D), np.float32)), caches[1]


def as_of_many_tokens(*arguments):
    """`qkv_rope_append` with the kernel in which a thread has two heads."""
    with patch.object(qkv_rope_append_vector, "MANY_TOKENS", 1):
        qkv_rope_append(*arguments)


@row
def qkv_rope_and_append_of_many_tokens():
    T, heads, kv_heads, D, b = 2, 29, 3, 64, 2
    N, heads_per_warp = heads + 2 * kv_heads, 8
    side_by_side = -(-N // (2 * heads_per_warp)) * heads_per_warp  # whole warps; the angles are loaded once for the two heads of a thread
    caches = [numbers(2, 4, kv_heads, D) for _ in range(2)]
    tables = numbers(8, D, dtype=FLOAT32), False, numbers(D), numbers(D)
    run = partial(as_of_many_tokens, numbers(T, N * D), integers(0, 3), integers(5, 0), *caches, numbers(T, heads, D), *tables)
    moved = dict(qkv=T * N * D * b, query=T * heads * D * b, key_cache=T * kv_heads * D * b, value_cache=T * kv_heads * D * b)
    repeated = dict(cos_sin=T * side_by_side * D * 4, q_norm=T * heads * D * b, k_norm=T * kv_heads * D * b)
    different = dict(cos_sin=T * D * 4, q_norm=D * b, k_norm=D * b)
    return run, {"qkv_rope_append_vector_kernel": Moved(moved | repeated, different)}, ("positions", "slot_mapping")


# Matrix products: x [M, K], weight [N, K], out [M, N].


@row
def wgmma_product_of_few_rows():
    M, N, K, b = 128, 192, 192, 2
    tiling = WgmmaTiling(1, 96, 2, 2, early=True)
    asked = dict(x_map=N // tiling.tile_n * M * K * b, weight_map=N * K * b, out_map=M * N * b)
    moved = Moved(asked, dict(x_map=M * K * b, weight_map=N * K * b), 2 * M * N * K)
    x, weight = np.round(numbers(M, K)), np.round(numbers(N, K))
    return partial(matmul_wgmma, x, weight, numbers(M, N), tiling=tiling), {"matmul_wgmma_kernel": moved}


@row
def wgmma_product_with_silu():
    M, F, K, b = 64, 128, 64, 2
    tiling = WgmmaTiling(1, 128, 2)
    tiles = M // tiling.tile_m * (2 * F // tiling.tile_n)
    asked = dict(x_map=tiles * tiling.tile_m * K * b, weight_map=tiles * tiling.tile_n * K * b, out_map=M * F * b)
    moved = Moved(asked, dict(x_map=M * K * b), 4 * M * F * K)
    x, gate_up = np.ones((M, K), BFLOAT16), np.round(numbers(2 * F, K))
    gate_up[:F] = 1  # a gate of K, whose sigmoid is 1 exactly however it is computed
    return partial(matmul_silu_and_multiply, x, gate_up, numbers(M, F), tiling=tiling), {"matmul_wgmma_kernel": moved}


# Attention: `pairs` are the visible (query, key) pairs of one head of a prompt of T tokens.

LENS = ("query_start", "context_lens", "block_tables")


def prompt(T, heads, kv_heads, head_dim, dtype):
    """A prompt's launch arguments."""
    arrays = make_arrays(AttentionCase((T,), (T,), heads, kv_heads, head_dim, dtype=dtype))
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, arrays.query_start, arrays.context_lens, arrays.block_tables)
    return *inputs, arrays.scale


def keys_of_tiles(T, tile):
    """Keys that the tiles of queries of a prompt load, summed."""
    return sum(min(T, first + tile) for first in range(0, T, tile))


@row
def flash_attention_2_over_a_quantized_cache():
    T, heads, kv_heads, D, b, query_tile, key_tile, chunks = 40, 2, 1, 32, 2, 16, 16, 2
    loaded, rows = heads * keys_of_tiles(T, query_tile), T * heads * D * b
    products = heads * sum(-(-min(T, first + query_tile) // key_tile) for first in range(0, T, query_tile))
    # Each of the threads that load 16 bytes of a row asks for its scale.
    asked = dict(query=rows, out=rows, key_cache=loaded * D, value_cache=loaded * D)
    asked |= dict(key_scales=loaded * chunks * 4, value_scales=loaded * chunks * 4)
    different = {f"{name}_cache": T * kv_heads * D for name in ("key", "value")} | {f"{name}_scales": T * 4 for name in ("key", "value")}
    arrays = make_arrays(AttentionCase((T,), (T,), heads, kv_heads, D, dtype=BFLOAT16))
    batch = (arrays.out, arrays.query_start, arrays.context_lens, arrays.block_tables, arrays.scale)
    run = partial(
        flash_attention_2_quantized.attention, arrays.query, *quantize_case(arrays, "int8")[:2], *batch, tiles=(query_tile, key_tile, 1)
    )
    expected = Moved(asked, different, 4 * D * query_tile * key_tile * products)
    return run, {"flash_attention_2_kernel": expected}, LENS


@row
def flash_attention_2_over_keys_by_channel():
    """Eight new tokens, which see the same 96 codes: six tiles of 16 keys, half a group each."""
    T, heads, kv_heads, D, codes, key_tile = 8, 2, 1, 32, 96, 16
    arrays = make_window_arrays(WindowCase((T,), (136,), "kivi_int4", 32, heads, kv_heads, D, dtype=BFLOAT16))
    rows, groups, key_tiles = T * heads * D * 2, codes // 32, codes // key_tile
    asked = dict(query=rows, out=rows, key_cache=heads * codes * D // 2, value_cache=heads * codes * D // 2)
    asked |= dict(key_scales=heads * key_tiles * D * 4, value_scales=heads * codes * 4)
    different = dict(key_cache=codes * D // 2, value_cache=codes * D // 2, key_scales=groups * D * 4, value_scales=codes * 4)
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, np.zeros_like(arrays.query), arrays.query_start, arrays.context_lens)
    options = dict(tiles=(16, key_tile, 1), residual_window=32)
    run = partial(flash_attention_2_quantized.attention, *inputs, arrays.block_tables, D**-0.5, **options)
    expected = Moved(asked, different, 4 * D * 16 * key_tile * key_tiles * heads)
    return run, {"flash_attention_2_kernel": expected}, LENS


@row
def flash_attention_2_in_float32():
    T, heads, kv_heads, D, b, query_tile = 20, 2, 1, 16, 4, 8
    loaded, rows = heads * keys_of_tiles(T, query_tile) * D * b, T * heads * D * b
    asked = dict(query=rows, key_cache=loaded, value_cache=loaded, out=rows)
    different = dict(key_cache=T * kv_heads * D * b, value_cache=T * kv_heads * D * b)
    arguments = prompt(T, heads, kv_heads, D, FLOAT32)
    run = partial(flash_attention_2.attention, *arguments, tiles=(4, 8, 2, 2))
    return run, {"flash_attention_2_kernel": Moved(asked, different)}, LENS


@row
def split_tensor_core_of_a_decode_step():
    context, heads, kv_heads, D, b, splits, warps = 256, 4, 2, 64, 2, 2, 4
    arrays = make_arrays(AttentionCase((1,), (context,), heads, kv_heads, D, dtype=BFLOAT16))
    arguments = (arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, arrays.query_start, arrays.context_lens)
    states = splits * heads * 4
    asked = dict(key_map=context * kv_heads * D * b, value_map=context * kv_heads * D * b, query=splits * warps * heads * D * b)
    parts_at_once, lanes = 16, 32  # each asks for 16 bytes; the last part is asked for again in place of those that are missing
    asked |= dict(part_max=2 * states, part_sum=2 * states, part_out=states * D + parts_at_once * heads * lanes * 16, out=heads * D * b)
    different = dict(query=heads * D * b, part_out=2 * states * D)
    tensor_core_flops = 4 * 8 * D * kv_heads * context  # 8 columns, of which the group fills two
    run = partial(split_tensor_core.attention, *arguments, arrays.block_tables, arrays.scale, splits=splits)
    return run, {"split_tensor_core_kernel": Moved(asked, different, tensor_core_flops)}, (*LENS, "arrivals")


@row
def split_cluster_of_a_short_sequence():
    context, heads, kv_heads, D, b, blocks, warps = 256, 4, 2, 64, 2, 8, 4
    arrays = make_arrays(AttentionCase((1,), (context,), heads, kv_heads, D, dtype=BFLOAT16))
    arguments = (arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, arrays.query_start, arrays.context_lens)
    asked = dict(key_map=context * kv_heads * D * b, value_map=context * kv_heads * D * b, query=blocks * warps * heads * D * b)
    asked |= dict(out=heads * D * b)
    tensor_core_flops = 4 * 8 * D * kv_heads * context  # 8 columns, of which the group fills two
    run = partial(split_tensor_core.attention, *arguments, arrays.block_tables, arrays.scale)
    return run, {"split_cluster_kernel": Moved(asked, dict(query=heads * D * b), tensor_core_flops)}, LENS


@row
def split_quantized_of_a_decode_step():
    context, heads, kv_heads, D, splits, warps, groups = 256, 4, 2, 64, 2, 4, 2
    arrays = make_arrays(AttentionCase((1,), (context,), heads, kv_heads, D, dtype=BFLOAT16))
    key_cache, value_cache, _ = quantize_case(arrays, "int4")
    arguments = (arrays.query, key_cache, value_cache, arrays.out, arrays.query_start, arrays.context_lens)
    states, rows = splits * heads * 4, heads * D * 2
    codes, scales = context * kv_heads * D // 2, context * kv_heads * groups * 4
    asked = dict(key_codes=codes, value_codes=codes, key_scales=scales, value_scales=scales)
    asked |= dict(query=2 * splits * warps * rows)  # by the lanes of the upper and of the lower halves
    parts_at_once, lanes = 16, 32  # each asks for 16 bytes; the last part is asked for again in place of those that are missing
    asked |= dict(part_max=2 * states, part_sum=2 * states, part_out=states * D + parts_at_once * heads * lanes * 16, out=rows)
    different = dict(query=rows, part_out=2 * states * D)
    shape = SplitShape(warps, 16, 2, 1, turns=2)
    run = partial(split_quantized.attention, *arguments, arrays.block_tables, arrays.scale, splits=splits, shape=shape)
    of_zeros = 2 * 8 * 16 * kv_heads * context  # weights times zeros, of both groups
    return run, {"split_quantized_kernel": Moved(asked, different, 4 * 8 * D * kv_heads * context + of_zeros)}, (*LENS, "arrivals")


@row
def split_quantized_by_channel():
    """Of 300 keys 256 are codes."""
    codes, heads, kv_heads, D, splits, warps, groups = 256, 4, 2, 64, 2, 4, 2
    arrays = make_window_arrays(WindowCase((1,), (300,), "kivi_int4", 32, heads, kv_heads, D, dtype=BFLOAT16))
    states, rows = splits * heads * 4, heads * D * 2
    moved, scales = codes * kv_heads * D // 2, codes * kv_heads * groups * 4  # keys have D scale pairs per 32 tokens: as many bytes
    asked = dict(key_codes=moved, value_codes=moved, key_scales=scales, value_scales=scales, query=splits * warps * rows, out=rows)
    asked |= dict(part_max=2 * states, part_sum=2 * states, part_out=states * D + 16 * heads * 32 * 16)  # the states of the row above
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, np.zeros_like(arrays.query), arrays.query_start, arrays.context_lens)
    options = dict(splits=splits, shape=SplitShape(warps, 32, 2, 1, turns=2), residual_window=32)
    run = partial(split_quantized.attention, *inputs, arrays.block_tables, D**-0.5, **options)
    products = 4 * 8 * D + 8 * D + 2 * 16 * 8  # a key: with codes, and with the zeros of a group of 32 keys and of a value
    expected = Moved(asked, dict(query=rows, part_out=2 * states * D), products * kv_heads * codes)
    return run, {"split_quantized_kernel": expected}, (*LENS, "arrivals")


@row
def residual_window_of_a_decode_step():
    """Two sequences with 32 and 64 codes and 40 and 33 recent keys; the merge is what no other row has."""
    heads, kv_heads, D = 2, 1, 64
    case = WindowCase((1, 1), (72, 97), "int8", 32, heads, kv_heads, D, dtype=BFLOAT16)
    arrays = make_window_arrays(case)
    out = np.zeros_like(arrays.query)
    rows, lse = arrays.query.nbytes, 2 * heads * 4
    asked = dict(first=rows, second=rows, out=rows, first_lse=lse * D // 8, second_lse=lse * D // 8)  # every thread asks for both
    merged = Moved(asked, dict(first_lse=lse, second_lse=lse))
    inputs = (*arrays.arguments[:5], out, *arrays.arguments[5:])
    run = partial(residual_window.attention, *inputs, D**-0.5, case.residual_window, max_query_len=1)
    return run, {"merge_states_kernel": merged}, LENS


def kernels_of_the_package():
    """The names of all functions under minllm/kernels that are decorated as kernels."""
    defined = set()
    for path in Path(minllm.kernels.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                names = [getattr(getattr(decorator, "func", decorator), "id", "") for decorator in node.decorator_list]
                defined |= {node.name} if "kernel" in names else set()
    return defined
