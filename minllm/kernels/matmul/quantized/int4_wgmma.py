"""W4A16 on Hopper for up to 64 rows of x: int4 becomes 16 bits in registers, as wgmma's left operand.

    out[m, n] = sum over groups g of scale[n, g] * sum over k in g of x[m, k] * (code[n, k] - zero[n, g])      (+ bias[n])

In a step TMA loads 64 rows of 128 bytes, 256 codes, for each warpgroup, and 256 columns of x. Of 16 inputs a lane needs four codes of each
of its two rows: codes 2 i, 2 i + 1, 2 i + 8 and 2 i + 9, if it is lane i of the four lanes of a row. They are the i-th pairs of two words,
so the lane shifts both words by 4 i; a lop3 puts 0x4300 above each nibble, which makes it the bfloat16 128 + code, and one fma subtracts
128 + zero, exactly (float16: 0x6400 and 1024). wgmma computes m64nNk16, N being the rows of x padded to a multiple of 8. The sums of a
group, or of 128 inputs of a larger group, are multiplied by its scale in float32: weights are never rounded.

2 M N K FLOPs on N K / 2 bytes of codes, and M K b bytes of x per block of weight rows. The mainloop, split-K and the epilogue are those of
flat/. Speed: docs/quantised-weights.md.

Source: PTX ISA, "wgmma.mma_async" (register operand); Frantar et al. 2024, "MARLIN", section 3.4 (the conversion).
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div, check_array, rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES, has_wgmma
from minllm.kernels.matmul.flat.flat import padded_rows
from minllm.kernels.matmul.flat.mainloop import launch_flat_wgmma, mainloop_of
from minllm.kernels.matmul.flat.output import make_keep_sums, make_write, stored_together
from minllm.kernels.matmul.flat.wgmma_tiling import LINE_BYTES, FlatWgmmaTiling, deepest
from minllm.kernels.matmul.quantized.arguments import UINT8, check_out
from minllm.kernels.matmul.quantized.int4_codes import MIDDLE
from minllm.kernels.vector import load_words
from minllm.runtime.kernel import check, kernel
from minllm.tiles.pipeline import Pipeline, make_pipeline
from minllm.tiles.shared import SharedTile, make_clear_rows
from minllm.tiles.warpgroup import THREADS, sync_blocks
from minllm.tiles.wgmma import make_wgmma

MOST_ROWS = 64
X_PANELS, STEP = 4, 256  # lines of x per line of codes; inputs per step
MOST_INPUTS = 128  # most inputs with weights in registers at a time
MAGIC = {"bfloat16": (0x4300, 128.0, 0x3F803F80), "float16": (0x6400, 1024.0, 0x3C003C00)}  # bits above a nibble; their value; two ones


def make_dequantize(inputs: int, dtype: str):
    """Return device functions (load, dequantize) for a lane's codes of `inputs` inputs of rows g and g + 8."""
    bits, _, ones = MAGIC[dtype]
    magic, chunks, per_row = bits << 16 | bits, inputs // 32, inputs // 8
    fma = ptx.fma_bf16x2 if dtype == "bfloat16" else ptx.fma_f16x2

    @cuda.jit(device=True, forceinline=True)
    def load(memory, line, first_chunk, words):
        """words[0 : 2 * per_row] = chunks of 32 codes of two rows; line: word of shared memory where the lane's first row begins."""
        swizzle = uint32(cuda.threadIdx.x) >> uint32(2) & uint32(7)
        for chunk in range(chunks):
            at = uint32(line + ((first_chunk + chunk) ^ swizzle) * uint32(4))
            load_words(memory, at, words, 4 * chunk)
            load_words(memory, at + uint32(8 * LINE_BYTES // 4), words, per_row + 4 * chunk)

    @cuda.jit(device=True, forceinline=True)
    def dequantize(words, mask, low_zero, high_zero, weights):
        """weights[0 : inputs / 4] = fragments of A, code - zero; low_zero, high_zero: pairs of -(128 + zero), or 1024; mask: 0xF000F."""
        shift = (uint32(cuda.threadIdx.x) & uint32(3)) << uint32(2)
        for word in range(per_row):
            low, high = words[word] >> shift & mask, words[per_row + word] >> shift & mask
            weights[2 * word] = fma(low | uint32(magic), uint32(ones), low_zero)
            weights[2 * word + 1] = fma(high | uint32(magic), uint32(ones), high_zero)

    return load, dequantize


def make_row_of(rows: int, halves: bool):
    """row_of(row, share, last): the weight row for a row of the block's tile, at most `last`; halves: gate and up."""

    @cuda.jit(device=True, forceinline=True)
    def row_of(row, share, last):
        if halves and row >= rows // 2:
            return uint32(min(int32(share.second_row + row - rows // 2), last))
        return uint32(min(int32(share.row + row), last))

    return row_of


def make_zero_pair(dtype: str):
    """zero_pair(zeros, row, group): the pair of -(128 + zero), or 1024, for a row's group."""
    offset, pack = MAGIC[dtype][1], ptx.pack_bf16x2 if dtype == "bfloat16" else ptx.pack_f16x2

    @cuda.jit(device=True, forceinline=True)
    def zero_pair(zeros, row, group):
        value = float32(-offset - MIDDLE)
        if zeros is not None:
            value = float32(-offset) - float32(zeros[group, row])
        return pack(value, value)

    return zero_pair


def make_consume(tokens: int, tiling: FlatWgmmaTiling, dtype: str, group_size: int, halves: bool, pipeline: Pipeline):
    """The device function of a consumer, which leaves the sums of 64 weight rows for all tokens in shared memory."""
    consumers, inputs, rows = tiling.warpgroups * THREADS, min(group_size, MOST_INPUTS), tiling.rows
    weight_bytes, panel_bytes, stage_words = rows * LINE_BYTES, tokens * LINE_BYTES, tiling.stage_bytes(tokens, X_PANELS) // 4
    (load, dequantize), row_of = make_dequantize(inputs, dtype), make_row_of(rows, halves)
    wgmma, zero_pair = make_wgmma(SharedTile(tokens, inputs), dtype, halves=True), make_zero_pair(dtype)
    registers, parts, fragments = wgmma.registers, STEP // inputs, inputs // 4
    keep_sums = make_keep_sums(rows, tokens // 8)
    clear_rows = make_clear_rows(tiling.stages, tiling.stage_bytes(tokens, X_PANELS), LINE_BYTES, consumers, 4)

    @cuda.jit(device=True, forceinline=True)
    def clear_absent_tokens(memory, sums_at, share, thread):
        if share.m < tokens:
            for panel in range(X_PANELS):
                start = 4 * sums_at + weight_bytes + panel * panel_bytes + share.m * LINE_BYTES
                clear_rows(memory, start, tokens - share.m, thread)
            ptx.bar_sync(1, consumers)

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, sums_at, ring, share, thread, scales, zeros):
        """memory[sums_at + token * (rows + PADDING) + row] = the sums of this block's part of K."""
        place = (thread >> 5) * 16 + (thread >> 2 & 7)
        last, last_group = int32(scales.shape[1] - 1), uint32(scales.shape[0] - 1)
        low, high = row_of(place, share, last), row_of(place + 8, share, last)
        x, line = ptx.keep_register(wgmma.right(ring.stages + weight_bytes)), uint32(sums_at + place * (LINE_BYTES // 4))
        mask = uint32(0x000F000F) | uint32(share.m >> 31)  # | 0, since m >= 0: the compiler would load a known mask for every pair
        sums, part_sums = cuda.local.array(registers, float32), cuda.local.array(registers, float32)
        words, weights = cuda.local.array(fragments, uint32), cuda.local.array(fragments, uint32)
        for i in range(registers):
            sums[i] = 0
        clear_absent_tokens(memory, sums_at, share, thread)
        state = pipeline.state(0)
        for step in range(share.steps):
            pipeline.consumer_wait(ring, state)
            for part in range(parts):
                first = uint32(uint32(share.first_step + step) * uint32(STEP) + uint32(part * inputs))  # first input of the part
                group = min(first // uint32(group_size), last_group)
                low_scale, high_scale = float32(scales[group, low]), float32(scales[group, high])
                load(memory, uint32(line + state.slot * stage_words), uint32(part * (inputs // 32)), words)
                dequantize(words, mask, zero_pair(zeros, low, group), zero_pair(zeros, high, group), weights)
                offset = part * inputs // 64 * panel_bytes + part * inputs % 64 * 2
                wgmma.multiply(part_sums, weights, uint32(pipeline.operand(x, state) + offset // 16), 0)
                wgmma.wait(part_sums)
                ptx.keep_registers(weights, fragments)
                for i in range(0, registers, 4):
                    sums[i], sums[i + 1] = sums[i] + low_scale * part_sums[i], sums[i + 1] + low_scale * part_sums[i + 1]
                    sums[i + 2], sums[i + 3] = sums[i + 2] + high_scale * part_sums[i + 2], sums[i + 3] + high_scale * part_sums[i + 3]
            pipeline.consumer_release(ring, state)
            state = pipeline.advance(state)
        ptx.bar_sync(1, consumers)  # all tiles have been multiplied: the sums may overwrite them
        keep_sums(sums, 0, memory, sums_at, (thread >> 5) * 16, thread & 31)

    return consume


@functools.cache
def int4_wgmma_kernel(tokens: int, tiling: FlatWgmmaTiling, group_size: int, dtype: str, gated: bool, together: int):
    """The kernel for x of `dtype` and up to `tokens` rows, a multiple of 8; gated and together as in flat_wgmma_kernel."""
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes(tokens, X_PANELS), tiling.warpgroups, by_thread=True)
    consume = make_consume(tokens, tiling, dtype, group_size, gated, pipeline)
    tile_of_block, open, begin, consume, produce, added = mainloop_of(tokens, tiling, gated, pipeline, consume, X_PANELS)
    splits, consumers, columns = tiling.splits, tiling.warpgroups * THREADS, tiling.rows // 2 if gated else tiling.rows
    write = make_write(tiling.rows, splits * consumers, dtype, gated, together, added)

    @kernel(launch_bounds=(tiling.threads, 1), dependent_launch=True)
    def int4_wgmma_kernel(x_map, weight_map, scales, zeros, bias, out, k_steps):
        """x [M, K] in boxes [tokens, 64], codes [N, K / 2] in boxes [rows, 128 bytes], scales [groups, N], zeros like scales or None,
        bias [N] or None, out [M, N] or [M, N / 2]."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        thread = int32(cuda.threadIdx.x)
        column, m = int32(tile_of_block() * columns), int32(out.shape[0])
        share, ring, sums_at = open(memory, k_steps, column, int32(column + out.shape[1]), m)
        if thread == consumers:
            begin(weight_map, ring, share)
        sync_blocks(1)
        if thread < consumers:
            consume(memory, sums_at, ring, share, thread, scales, zeros)
        elif thread == consumers:
            produce(x_map, weight_map, ring, share)
        sync_blocks(splits)
        if thread < consumers:
            write(bias, None, None, out, memory, sums_at, 0, m, column, share.split * consumers + thread)
        if splits > 1:  # a block must not exit while others may read its shared memory
            sync_blocks(splits)

    return int4_wgmma_kernel


def fits(x, weight) -> bool:
    """Whether the kernel supports these arrays, on a GPU with wgmma.

    Up to 64 rows of 16 bits; groups of 32, 64 or multiples of 128, without minimums; rows that begin on multiples of 16 bytes.
    """
    group_size = x.shape[1] // weight.scales.shape[0]
    groups = group_size in (32, 64) or group_size % MOST_INPUTS == 0
    return x.shape[0] <= MOST_ROWS and x.dtype in HALF_DTYPES and groups and weight.minimums is None and rows_begin_on(16, x, weight.codes)


def choose_tiling(tokens: int, n: int, gated: bool) -> FlatWgmmaTiling:
    """Return the fastest of some twenty tilings on an H200, or one within 3 % of it.

    It has many warps, to unpack codes, and more blocks per SM the fewer tokens there are.
    """
    rows = 2 * n if gated else n
    if tokens > 32:
        splits, blocks = (1, 2) if rows > 8192 else (2, 2) if rows > 4096 else (2, 1)
        return deepest(1, tokens, splits, blocks, X_PANELS)
    return deepest(2 if rows > 4096 else 1, tokens, 1 if rows > 8192 else 4, 3, X_PANELS)


def check_product(x, weight, out, bias, gated: bool, most_rows: int) -> None:
    """Raise KernelArgumentError unless x [M, K], an Int4Weight [N, K], out [M, N], or gated [M, N / 2], and bias fit."""
    (m, k), n = x.shape, weight.codes.shape[0]
    check(
        m <= most_rows and fits(x, weight),
        f"x is {x.dtype} {[m, k]} and the weight has {weight.scales.shape[0]} groups; this product of int4 takes up to {most_rows} rows of "
        "float16 or bfloat16, groups of 32, 64 or multiples of 128 without minimums, and rows of whole 16 bytes: take the GEMV, or widen "
        "the weight",
    )
    check_array("codes", weight.codes, (UINT8,), N=None, bytes=k // 2)
    check(has_wgmma(x), "this product of int4 needs a GPU of compute capability 9.0: take gemv, or widen the weight")
    check_out(x, out, bias, n, gated)


def run(x, weight, out, bias, stream, tiling: FlatWgmmaTiling | None, gated: bool) -> None:
    """Check the arguments and launch."""
    check_product(x, weight, out, bias, gated, MOST_ROWS)
    (m, k), n = x.shape, weight.codes.shape[0]
    if 0 in out.shape:
        return
    tokens = padded_rows(m)
    tiling = tiling or choose_tiling(tokens, out.shape[1], gated)
    check(tiling.sharers == 1, f"{tiling}: blocks over int4 do not share tiles of x")
    chosen = int4_wgmma_kernel(tokens, tiling, k // weight.scales.shape[0], x.dtype.name, gated, stored_together(out, x.dtype))
    tiles, arguments = ceil_div(n, tiling.rows), (weight.scales, weight.zeros, bias, out, ceil_div(k, STEP))
    launch_flat_wgmma(chosen, x, weight.codes.view("uint16"), arguments, tokens, tiling, tiles, gated, stream, X_PANELS)


def int4_wgmma(x, weight, out, bias=None, stream=None, tiling: FlatWgmmaTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out` [M, N].

    x [M, K], M <= 64, float16 or bfloat16; weight: an Int4Weight without minimums; out and bias [N] have x's dtype or float32. `tiling`
    overrides the choice by shape. Raises KernelArgumentError for anything else (see `fits`), and on a GPU of another compute capability
    than 9.0.
    """
    run(x, weight, out, bias, stream, tiling, False)


def gated_int4_wgmma(x, gate_up, out, stream=None, tiling: FlatWgmmaTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I], in x's dtype.

    gate_up: an Int4Weight [2 I, K], the gate's rows first. Raises as int4_wgmma does.
    """
    run(x, gate_up, out, None, stream, tiling, True)
