"""What the kernels of quantised weights move, if tiles are whole.

x [M, K] of b bytes an element or a byte a code, weight [N, K], out [M, N]. A warp of a GEMV computes a column of out; its lanes load 16
bytes of codes, and with them the scales of their groups.
"""

import numpy as np

from minllm.catalogue.launch import Moved
from minllm.catalogue.matmul.places import places_moved
from minllm.kernels.quantization.decoder import STEP
from minllm.kernels.quantization.nf4 import CODES, COLUMNS, MAP_ENTRIES, Nf4Weight

QUAD = 4  # lanes of a row in mma.sync: each loads what belongs to its two rows of weight


def rows_moved(m, k, b, by_groups):
    """Of rows of x: read twice unless they stay in registers."""
    moved = Moved(dict(x=m * k * b, codes=m * k, scales=4 * m * (-(-k // 128) if by_groups else 1)))
    twice = Moved(dict(moved.asked, x=2 * m * k * b), dict(x=m * k * b))
    return dict(quantize_rows_kernel=twice, quantize_vectors_kernel=moved, quantize_row_groups_kernel=moved)


def in_weight(counts):
    """Counts by the names of the arrays of a kernel that is given the whole weight."""
    names = {name: f"weight.{name}" for name in (*Nf4Weight._fields, "scales", "zeros")} | dict(absmax_map="weight.map")
    return {names.get(name, name): count for name, count in counts.items()}


def int4_moved(n, k, group):
    """(asked, different) of a weight with zeros: each load of 32 codes asks for the scale and the zero point of its group."""
    loads, groups = n * k // 32, n * k // group
    return dict(codes=n * k // 2, scales=2 * loads, zeros=loads), dict(scales=2 * groups, zeros=groups)


def nf4_moved(n, k, blocks, weight):
    """(asked, different): each load of 32 codes asks for the absmax of its block of 64, each block of threads for the table."""
    loads = n * k // 32
    asked = dict(codes=n * k // 2, absmax=loads, absmax_map=4 * loads, nested=4 * loads, offsets=4 * loads, first_blocks=4 * loads)
    different = dict(absmax=n * k // 64, absmax_map=4 * len(np.unique(weight.absmax)), nested=4, offsets=4 * n, first_blocks=4 * n)
    return asked | dict(table=64 * blocks), different | dict(table=64)


def widened_moved(form, n, k, b, weight):
    """Of a matrix [N, K] of b bytes an element."""
    out = dict(out=n * k * b)
    if form == "fp8_block":
        return Moved(dict(codes=n * k, scales=4 * n * k, blocks=4 * n * k) | out, dict(scales=4 * weight.scales.size, blocks=4 * n))
    if form == "int8_groups":
        return Moved(in_weight(dict(codes=n * k, scales=2 * n * k // 16)) | out, in_weight(dict(scales=2 * n * k // 32)))
    if form.endswith("_zeros"):
        asked, different = int4_moved(n, k, k // len(weight.scales))
        return Moved(asked | out, different)
    if form == "nf4/nested":
        asked, different = map(in_weight, nf4_moved(n, k, n, weight))
        return Moved(asked | out, different)
    return Moved(dict(codes=n * k) | out) if form in ("int8", "fp8") else {}


def product_moved(variant, family, m, n, k, b, tiling, gated, weight, arrays):
    """Of a GEMM or GEMV, or its kernels; n: rows of weight."""
    if variant in ("gemv", "int4_naive"):
        return gemv_moved(variant, family, m, n, k, b, weight)
    if variant == "widened":
        asked = dict(sums=4 * m * n, x_scales=4 * m * n, scales=4 * m * n, out=m * n * b)
        scaled = Moved(asked, dict(x_scales=4 * m, scales=4 * n))
        return {f"widen_{family}_kernel": widened_moved(family, n, k, b, weight), "scale_sums_kernel": scaled}
    if variant == "tensor_core_gemv" and tiling.tokens == 1:
        return one_row_moved(family, n, k, b, tiling, gated, weight, arrays)
    if variant == "tensor_core_gemv":
        return several_rows_moved(family, m, n, k, b, tiling, weight)
    if variant == "flat":  # each thread of the epilogue asks for the scales of its eight columns
        asked = dict(x_map=m * k * n // tiling.rows, weight_map=n * k, x_scales=4 * m * n // 8, scales=4 * m * n, out=m * n * b)
        return Moved(asked, dict(x_map=m * k, x_scales=4 * m, scales=4 * n), 2 * m * n * k)
    if family in ("int8", "fp8"):  # a consumer's threads ask for two rows' scales, and for those of a pair of columns per pair of outputs
        tiles = m // tiling.tile_m * (n // tiling.tile_n)
        asked = dict(x_map=tiles * tiling.tile_m * k, weight_map=tiles * tiling.tile_n * k // tiling.cluster, out_map=m * n * b)
        asked |= dict(x_scales=4 * 2 * 128 * tiles, scales=4 * m * n)
        return Moved(asked, dict(x_map=m * k, weight_map=n * k, x_scales=4 * m, scales=4 * n), 2 * m * n * k)
    return mixed_input_moved(family, m, n, k, b, tiling, weight)


def gemv_moved(variant, family, m, n, k, b, weight):
    """Of a GEMV on CUDA cores; one of fp8 in blocks asks with every load for both scales, and with every lane for the output's block."""
    out, plain, loads = dict(out=m * n * b), dict(x=m * k * b), n * k // 16
    if family in ("int8", "fp8"):
        asked = dict(x=m * k * n, x_scales=4 * m * n, codes=n * k, scales=4 * m * n)
        return Moved(asked | out, dict(x=m * k, x_scales=4 * m, scales=4 * n))
    if family == "fp8_block":
        asked = dict(x=m * k * n, x_scales=4 * m * loads, codes=n * k, scales=4 * loads, blocks=4 * 32 * n)
        groups = -(-k // 128)
        return Moved(asked | out, dict(x=m * k, x_scales=4 * m * groups, scales=4 * groups, blocks=4 * n))
    x = dict(x=m * k * b * n)
    if family == "int8_groups":
        return Moved(x | in_weight(dict(codes=n * k, scales=2 * loads)) | out, plain | in_weight(dict(scales=2 * n * k // 32)))
    if family == "nf4":
        asked, different = map(in_weight, nf4_moved(n, k, -(-n // 4), weight))
        return Moved(asked | x | out, different | plain)
    asked, different = int4_moved(n, k, k // len(weight.scales))
    if variant == "int4_naive":  # each byte asks for the scale and the zero point of its group
        asked = dict(codes=m * n * k // 2, scales=m * n * k, zeros=m * n * k // 2)
        different |= dict(codes=n * k // 2)
    return Moved(asked | x | out, different | plain)


def mixed_input_moved(family, m, n, k, b, tiling, weight):
    """TMA loads a row's scale or absmax for every step.

    For NF4, lanes load nested scales, once more beyond the last step, and two numbers per row; a block 17 numbers per column of its table,
    and the map.
    """
    tiles, steps, lanes = n // tiling.rows, k // STEP, 4 * n
    asked = {"x_map": m * k * b * tiles, "weight_map": n * k // 2, "out": m * n * b}
    if family == "int4":
        asked |= {"scale_maps.first": 2 * n * steps}
        return Moved(asked, {"x_map": m * k * b, "scale_maps.first": 2 * n}, 2 * m * n * k)
    _, different = nf4_moved(n, k, 1, weight)
    asked |= dict(nested=4 * lanes * (steps + 1), map=4 * MAP_ENTRIES * tiles, offsets=4 * lanes, first_blocks=4 * lanes)
    asked |= {"table": 4 * (1 + CODES) * COLUMNS * tiles, "scale_maps.first": n * steps}
    different |= {"x_map": m * k * b, "absmax_map": 4 * MAP_ENTRIES, "scale_maps.first": different.pop("absmax")}
    return Moved(in_weight(asked), in_weight(different), 2 * m * n * k)


def one_row_moved(family, n, k, b, tiling, gated, weight, arrays):
    """Every block reads x and the norm.

    Each of a quad's lanes, in each of the warps that share a tile, loads what belongs to its two rows of weight or outputs; scales of rows
    also for the tile after the last, which is none: those of the last rows. For NF4 a block loads the map, and for each column of its table
    17 numbers; a warp has two steps in flight, and a lane loads what scales one of them: two codes of absmax, and a nested scale for each.
    """
    blocks, steps, lanes = n // 16, k // 128, QUAD * tiling.splits
    asked, different = dict(x=k * b * blocks, codes=n * k if family == "int8" else n * k // 2), dict(x=k * b)
    if "norm" in arrays:
        asked, different = asked | dict(norm=k * b * blocks), different | dict(norm=k * b)
    for name in {"bias", "residual"} & arrays.keys():
        asked, different = asked | {f"arrays.{name}": lanes * n * b}, different | {f"arrays.{name}": n * b}
    if family == "int8":
        asked, different = asked | dict(scales=2 * lanes * 4 * n), different | dict(scales=4 * n)
    elif family == "int4":  # both groups of a step
        asked |= dict(scales=4 * 2 * 2 * n * steps, zeros=4 * 2 * n * steps)
        different |= int4_moved(n, k, k // len(weight.scales))[1]
    else:
        scaled = QUAD * n * steps // 2
        asked |= dict(absmax=2 * scaled, nested=2 * 4 * scaled, absmax_map=4 * 256 * blocks, table=4 * (1 + CODES) * COLUMNS * blocks)
        asked |= dict(offsets=2 * QUAD * 4 * n, first_blocks=2 * QUAD * 4 * n)
        different |= nf4_moved(n, k, 1, weight)[1] | dict(absmax_map=4 * 256)
    out = {"arrays.out": (n // 2 if gated else n) * b}
    return Moved(in_weight(asked) | out, in_weight(different), 2 * 8 * n * k)


def qkv_moved(heads, kv_heads, head_dim, k, b, tiling, codes, smooth):
    """Of queries, keys and values in fp8 with norm and bias, of one row of x; what else a lane loads as in one_row_moved."""
    n = (heads + 2 * kv_heads) * head_dim
    blocks, lanes = n // 16, QUAD * tiling.splits
    threads = tiling.threads * blocks
    asked = {"x": k * b * blocks, "norm": k * b * blocks, "weight.codes": n * k, "weight.scales": 2 * lanes * 4 * n}
    asked |= {"arrays.bias": lanes * n * b}
    different = {"x": k * b, "norm": k * b, "weight.scales": 4 * n, "arrays.bias": n * b}
    placed, of_places = places_moved(1, heads, kv_heads, head_dim, b, threads, codes, smooth)
    return Moved(asked | placed, different | of_places, 2 * 8 * n * k)


def several_rows_moved(family, m, n, k, b, tiling, weight):
    """A cluster's blocks read all of x together, the last row of it in place of those that 8 tokens have beyond M.

    Each of a quad's lanes, in each of the warps that divide K, loads what belongs to a group of its two rows of weight. int4: each output
    asks for its bias. NF4: a block loads the tables; a warp two numbers per row of weight for its tile, and for the one after it.
    """
    clusters, warps = n // 16, tiling.parts_of_k
    asked, different = dict(x=clusters * tiling.tokens * k * b, codes=n * k // 2), dict(x=m * k * b)
    if family == "int4":
        asked |= dict(scales=2 * QUAD * n * warps, zeros=QUAD * n * warps) | {"arrays.bias": m * n * b}
        different |= int4_moved(n, k, k // len(weight.scales))[1] | {"arrays.bias": n * b}
    else:
        of_rows, blocks = QUAD * n * warps, tiling.cluster  # lanes of all rows
        asked |= dict(absmax=of_rows, nested=4 * of_rows, absmax_map=4 * 256 * blocks, table=4 * (1 + CODES) * COLUMNS * blocks)
        asked |= dict(offsets=2 * 4 * of_rows, first_blocks=2 * 4 * of_rows)
        different |= nf4_moved(n, k, 1, weight)[1] | dict(absmax_map=4 * 256)
    return Moved(in_weight(asked) | {"arrays.out": m * n * b}, in_weight(different), 2 * tiling.tokens * n * k)
