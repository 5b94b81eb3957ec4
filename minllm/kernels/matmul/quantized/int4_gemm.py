"""W4A16 GEMM on Hopper for many rows of x: tiles of int4 become 16 bits in registers, which are wgmma's left operand.

    w[n, k] = (code[n, k] - zero[n, g]) * scale[n, g],  g = k // group_size          rounded to x's dtype, the scale first
    out[m, n] = sum over k of x[m, k] * w[n, k]  (+ bias[n])
    gated:  out[m, n] = silu(gate[m, n]) * up[m, n]         gate and up: such sums with the first and the second half of weight's rows

A block computes 128 outputs, 64 per warpgroup, of up to 256 rows of x. In a step of 64 inputs TMA loads 32 bytes of codes per row of
weight, and x. A warpgroup decodes the codes of the next step while the tensor cores multiply those of this one, and while one warpgroup
decodes, the other multiplies. Decoding takes four instructions per pair of weights, and a decoded pair multiplies up to 256 rows. If there
are fewer blocks than SMs, `splits` blocks of a cluster divide K, and add their sums as in flat_wgmma.py. int4_wgmma.py, for up to 64 rows,
adds the sums of a group in float32 instead and rounds no weight, which takes twice the registers.

2 M N K FLOPs, N K / 2 bytes of codes for every 256 rows of x, and M K b bytes of x for every 128 rows of weight, from L2 for the most part:
blocks that run together share both. How codes become numbers: int4_wgmma.py.

Source: PTX ISA, "wgmma.mma_async" (register operand), "Swizzling modes"; Frantar et al. 2024, "MARLIN", section 3.4.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div, rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.flat.flat import padded_rows
from minllm.kernels.matmul.flat.mainloop import make_added
from minllm.kernels.matmul.flat.output import PADDING, make_keep_sums, make_write, stored_together
from minllm.kernels.matmul.quantized.int4_wgmma import MAGIC, MIDDLE, check_arrays
from minllm.kernels.vector import load_words
from minllm.runtime.device import sms_here
from minllm.runtime.kernel import check, kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles import tma
from minllm.tiles.pipeline import make_pipeline
from minllm.tiles.shared import SharedTile, first_tile_address
from minllm.tiles.warpgroup import ROWS, THREADS, sync_blocks
from minllm.tiles.wgmma import make_wgmma

STEP, CODE_BYTES = 64, 32  # inputs of a step, and the bytes of their codes in a row of weight: the swizzle's span
WORDS = STEP // 8  # of codes, in a row of a step
SHARED_BYTES_OF_A_BLOCK = 227 * 1024
MOST_TOKENS = 256  # the most rows of x per block
MINUS_ZEROS = 0x80008000  # a pair: fma with it multiplies, and keeps the sign of zero


class Int4GemmTiling(NamedTuple):
    """`warpgroups` of 64 rows of weight each, and `tokens` rows of x, per block; `stages` steps of K are in flight.

    splits: blocks of a cluster that divide K.
    """

    warpgroups: int
    tokens: int
    stages: int
    splits: int = 1

    @property
    def rows(self) -> int:
        """Rows of weight of a block."""
        return self.warpgroups * ROWS

    @property
    def threads(self) -> int:
        """The producer's warpgroup, and the consumers."""
        return (1 + self.warpgroups) * THREADS

    @property
    def x_tile(self) -> SharedTile:
        """A step's tile of x; the codes lie behind it."""
        return SharedTile(self.tokens, STEP)

    @property
    def stage_bytes(self) -> int:
        """Bytes of a step's x and codes."""
        return self.x_tile.bytes + self.rows * CODE_BYTES

    @property
    def shared_bytes(self) -> int:
        """The stages, or the sums that later lie in their place; two barriers per stage; room to begin at a multiple of 1024."""
        return max(self.stages * self.stage_bytes, self.tokens * (self.rows + PADDING) * 4) + 16 * self.stages + 1024

    def check(self) -> None:
        """Raise KernelArgumentError unless it can be launched."""
        counts = self.warpgroups in (1, 2) and self.stages >= 2 and self.splits in (1, 2, 3, 4, 8)
        check(counts, f"{self}: 1 or 2 warpgroups, at least 2 stages, and 1, 2, 3, 4 or 8 splits")
        check(self.tokens in range(8, MOST_TOKENS + 1, 8), f"{self}: 8, 16, ... or 256 tokens")
        limit = f"{self}: {self.shared_bytes} bytes of shared memory; a block has {SHARED_BYTES_OF_A_BLOCK}"
        check(self.shared_bytes <= SHARED_BYTES_OF_A_BLOCK, limit)


def choose_tiling(m: int, n: int, k: int, gated: bool) -> Int4GemmTiling:
    """The largest tile, and as many parts of K as SMs are left for, of four steps at least.

    A cluster must fit one group of some 16 SMs, so of more than two blocks that fill an SM, clusters leave an eighth of the SMs unused.
    """
    rows, steps, chunks = 2 * n if gated else n, ceil_div(k, STEP), ceil_div(m, MOST_TOKENS)
    tokens, warpgroups = padded_rows(ceil_div(m, chunks)), 2 if rows > ROWS else 1
    tiles = ceil_div(rows, warpgroups * ROWS) * ceil_div(m, tokens)
    in_clusters = sms_here() * 7 // 8
    fitting = (splits for splits in (8, 4, 3) if splits * tiles <= in_clusters and 4 * splits <= steps)
    splits = next(fitting, 2 if 2 * tiles <= sms_here() and 8 <= steps else 1)
    stages = (SHARED_BYTES_OF_A_BLOCK - 2048) // Int4GemmTiling(warpgroups, tokens, 1).stage_bytes
    return Int4GemmTiling(warpgroups, tokens, min(8, stages), splits)


class Tile(NamedTuple):
    """A block's part of the work: rows of weight (gated: also those of the second half), rows of x, steps of K from the first on."""

    row: int
    second_row: int
    token: int
    first_step: int
    steps: int


def make_produce(tiling: Int4GemmTiling, gated: bool, pipeline):
    """The device function of the producer, one thread: it keeps the stages full."""
    x_bytes, code_bytes, stages = tiling.x_tile.bytes, tiling.rows * CODE_BYTES, tiling.stages

    @cuda.jit(device=True, forceinline=True)
    def load_codes(stage, weight_map, step, tile):
        """The codes of a step; the stage is full when x is there too."""
        pipeline.producer_expect(stage, x_bytes + code_bytes)
        column = (tile.first_step + step) * (CODE_BYTES // 2)
        tma.load_2d(stage, x_bytes, weight_map, column, tile.row)
        if gated:
            tma.load_2d(stage, x_bytes + code_bytes // 2, weight_map, column, tile.second_row)

    @cuda.jit(device=True, forceinline=True)
    def load_x(stage, x_map, step, tile):
        tma.load_2d(stage, 0, x_map, (tile.first_step + step) * STEP, tile.token)

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, tile):
        """All steps in the order in which they are multiplied; the first codes, which no kernel writes, before x is written."""
        first_steps = min(tile.steps, stages)
        for step in range(first_steps):
            load_codes(pipeline.stage(ring, pipeline.state(step)), weight_map, step, tile)
        ptx.griddepcontrol_wait()
        for step in range(first_steps):
            load_x(pipeline.stage(ring, pipeline.state(step)), x_map, step, tile)
        state = pipeline.state(stages)
        for step in range(stages, tile.steps):
            stage = pipeline.producer_acquire(ring, state)
            load_codes(stage, weight_map, step, tile)
            load_x(stage, x_map, step, tile)
            state = pipeline.advance(state)

    return produce


def make_decode(dtype: str, group_size: int):
    """(load_scales, make_pairs, load, decode): device functions that make a lane's fragments of a step, of rows g and g + 8 of a warp's 16.

    What a step needs of scales and zeros is loaded a step before, and becomes pairs while the tensor cores multiply.
    """
    parts = max(1, STEP // group_size)
    words_of_part = WORDS // parts
    bits, offset, ones = MAGIC[dtype]
    magic, pack = bits << 16 | bits, ptx.pack_bf16x2 if dtype == "bfloat16" else ptx.pack_f16x2
    fma = ptx.fma_bf16x2 if dtype == "bfloat16" else ptx.fma_f16x2

    @cuda.jit(device=True, forceinline=True)
    def load_scales(scales, zeros, low, high, step, values):
        """values[4 * part + ...] = zero and scale of row low, and of row high, in the groups of a step, or in the last group."""
        for part in range(parts):
            group = min(uint32((uint32(step) * uint32(STEP) + uint32(part * 32)) // uint32(group_size)), uint32(scales.shape[1] - 1))
            values[4 * part + 1], values[4 * part + 3] = float32(scales[low, group]), float32(scales[high, group])
            if zeros is not None:
                values[4 * part], values[4 * part + 2] = float32(zeros[low, group]), float32(zeros[high, group])
            else:
                values[4 * part], values[4 * part + 2] = float32(MIDDLE), float32(MIDDLE)

    @cuda.jit(device=True, forceinline=True)
    def make_pairs(values, pairs):
        """pairs[4 * part + ...] = -(128 + zero) and scale of row low, and of row high; all as pairs of the same number."""
        for part in range(parts):
            for row in range(2):
                at = 4 * part + 2 * row
                zero, scale = float32(-offset) - values[at], values[at + 1]
                pairs[at], pairs[at + 1] = pack(zero, zero), pack(scale, scale)

    @cuda.jit(device=True, forceinline=True)
    def load(memory, line, words):
        """words[0 : 16] = a step's codes of two rows; line: the word at which the lane's first row begins. Swizzled within 256 bytes."""
        swizzle = uint32(cuda.threadIdx.x) >> uint32(4) & uint32(1)
        for chunk in range(2):
            at = uint32(line + (uint32(chunk) ^ swizzle) * uint32(4))
            load_words(memory, at, words, 4 * chunk)
            load_words(memory, at + uint32(8 * CODE_BYTES // 4), words, WORDS + 4 * chunk)

    @cuda.jit(device=True, forceinline=True)
    def decode(words, mask, pairs, weights):
        """weights[0 : 16]: the fragments of A; mask: 0xF000F."""
        shift = (uint32(cuda.threadIdx.x) & uint32(3)) << uint32(2)
        for word in range(WORDS):
            at = word // words_of_part * 4
            low, high = words[word] >> shift & mask, words[WORDS + word] >> shift & mask
            low, high = fma(low | uint32(magic), uint32(ones), pairs[at]), fma(high | uint32(magic), uint32(ones), pairs[at + 2])
            weights[2 * word] = fma(low, pairs[at + 1], uint32(MINUS_ZEROS))
            weights[2 * word + 1] = fma(high, pairs[at + 3], uint32(MINUS_ZEROS))

    return load_scales, make_pairs, load, decode


class Codes(NamedTuple):
    """What a lane needs to decode: arrays, its rows of weight, and registers that it fills for each step."""

    scales: Any  # [N, groups]
    zeros: Any  # [N, groups], or None
    low: int  # the lane's first row of weight
    high: int  # its second
    mask: int  # picks two codes of a word
    values: Any  # float32: zeros and scales of a step's groups
    pairs: Any  # the same as pairs of 16-bit floats
    words: Any  # the codes of both rows


def make_consume(tiling: Int4GemmTiling, dtype: str, group_size: int, gated: bool, pipeline):
    """The device function of a consumer: the sums of 64 rows of weight for all rows of x of the tile, left in shared memory."""
    rows, stage_words, x_bytes = tiling.rows, tiling.stage_bytes // 4, tiling.x_tile.bytes
    load_scales, make_pairs, load, decode = make_decode(dtype, group_size)
    wgmma = make_wgmma(tiling.x_tile, dtype, halves=True)
    consumers = tiling.warpgroups * THREADS
    registers, fragments, pair_count = wgmma.registers, 2 * WORDS, 4 * max(1, STEP // group_size)
    keep_sums = make_keep_sums(rows, tiling.tokens // 8)

    @cuda.jit(device=True, forceinline=True)
    def row_of(row, tile, last):
        """The row of weight at a place of the tile, or any beyond the edge."""
        first = tile.second_row - rows // 2 if gated and row >= rows // 2 else tile.row
        return uint32(min(int32(first + row), last))

    @cuda.jit(device=True, forceinline=True)
    def decode_step(memory, line, ring, tile, state, step, codes, weights):
        """weights = the fragments of a step, once it is in its stage; the scales of the next step are on their way then."""
        make_pairs(codes.values, codes.pairs)
        load_scales(codes.scales, codes.zeros, codes.low, codes.high, tile.first_step + step + 1, codes.values)
        pipeline.consumer_wait(ring, state)
        load(memory, uint32(line + state.slot * stage_words), codes.words)
        decode(codes.words, codes.mask, codes.pairs, weights)

    @cuda.jit(device=True, forceinline=True)
    def multiply(memory, line, ring, tile, state, step, x, sums, weights, codes, following):
        """sums += a decoded step; the next one is decoded into `following` meanwhile -> its state."""
        wgmma.multiply(sums, weights, pipeline.operand(x, state), 1)
        next_state = pipeline.advance(state)
        if step + 1 < tile.steps:
            decode_step(memory, line, ring, tile, next_state, step + 1, codes, following)
        wgmma.wait(sums)
        ptx.keep_registers(weights, fragments)
        pipeline.consumer_release(ring, state)
        return next_state

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, first_word, ring, tile, thread, scales, zeros):
        """memory[first_word + token * (rows + PADDING) + row] = the sums of the tile's steps."""
        place = (thread >> 5) * 16 + (thread >> 2 & 7)
        last = int32(scales.shape[0] - 1)
        low, high = row_of(place, tile, last), row_of(place + 8, tile, last)
        x = ptx.keep_register(wgmma.right(ring.stages))
        line = uint32(first_word + x_bytes // 4 + place * (CODE_BYTES // 4))
        mask = uint32(0x000F000F) | uint32(tile.steps >> 31)  # steps are not negative; a mask that the compiler knows is loaded per pair
        values, pairs = cuda.local.array(pair_count, float32), cuda.local.array(pair_count, uint32)
        codes = Codes(scales, zeros, low, high, mask, values, pairs, cuda.local.array(fragments, uint32))
        sums = cuda.local.array(registers, float32)
        even, odd = cuda.local.array(fragments, uint32), cuda.local.array(fragments, uint32)
        for i in range(registers):
            sums[i] = 0
        load_scales(scales, zeros, low, high, tile.first_step, values)
        state = pipeline.state(0)
        decode_step(memory, line, ring, tile, state, 0, codes, even)
        for step in range(0, tile.steps, 2):
            state = multiply(memory, line, ring, tile, state, step, x, sums, even, codes, odd)
            if step + 1 < tile.steps:
                state = multiply(memory, line, ring, tile, state, step + 1, x, sums, odd, codes, even)
        ptx.bar_sync(1, consumers)  # all tiles have been multiplied: the sums may lie in their place
        keep_sums(sums, 0, memory, first_word, (thread >> 5) * 16, thread & 31)

    return consume


@functools.cache
def int4_gemm_kernel(tiling: Int4GemmTiling, group_size: int, dtype: str, gated: bool, together: int):
    """The kernel for x of `dtype`; gated and together as in flat_wgmma_kernel."""
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes, tiling.warpgroups, by_thread=True)
    produce, consume = make_produce(tiling, gated, pipeline), make_consume(tiling, dtype, group_size, gated, pipeline)
    consumers, columns, tokens = tiling.warpgroups * THREADS, tiling.rows // 2 if gated else tiling.rows, tiling.tokens
    splits, barriers_at, two_consumers = tiling.splits, tiling.shared_bytes - 1024 - 16 * tiling.stages, tiling.warpgroups == 2
    write = make_write(tiling.rows, splits * consumers, dtype, gated, together, make_added(splits, 1))

    @kernel(launch_bounds=(tiling.threads, 1), dependent_launch=True)
    def int4_gemm_kernel(x_map, weight_map, scales, zeros, bias, out, steps):
        """x [M, K] in boxes [tokens, 64], codes [N, K / 2] in boxes [rows, 32 bytes] (gated: half the rows), scales [N, groups], zeros
        alike or None, bias [N] or None, out [M, N] or [M, N / 2]."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        thread, m = int32(cuda.threadIdx.x), int32(out.shape[0])
        first_stage = first_tile_address(memory)
        chunks = int32((m + tokens - 1) // tokens)  # chunks of x run side by side: they share the codes in L2
        number, split = int32(cuda.blockIdx.x // splits), int32(cuda.blockIdx.x % splits)
        column, token, first_step = int32(number // chunks * columns), int32(number % chunks * tokens), int32(steps * split // splits)
        tile = Tile(column, int32(column + out.shape[1]), token, first_step, int32(steps * (split + 1) // splits - first_step))
        ring = pipeline.ring(first_stage, first_stage + barriers_at, 0)
        first_word = (first_stage - ptx.shared_address(memory, 0)) >> uint32(2)
        if thread == 0:
            pipeline.init(ring)
        cuda.syncthreads()
        if thread < THREADS:
            if two_consumers:
                ptx.setmaxnreg_dec(40)
            if thread == 0:
                produce(x_map, weight_map, ring, tile)
        else:
            if two_consumers:
                ptx.setmaxnreg_inc(232)
            consume(memory, first_word, ring, tile, int32(thread - THREADS), scales, zeros)
        sync_blocks(splits)
        if thread >= THREADS:
            rows, writer = min(int32(tokens), int32(m - token)), int32(split * consumers + thread - THREADS)
            write(bias, None, None, out, memory, first_word, token, rows, column, writer)
        if splits > 1:  # a block's shared memory has to stay while others may read it
            sync_blocks(splits)

    return int4_gemm_kernel


def fits(x, weight) -> bool:
    """Whether the kernel takes these arrays, on a GPU with wgmma: rows of 16 bits, groups of 32 or multiples of 64."""
    group_size = x.shape[1] // weight.scales.shape[1]
    groups = group_size == 32 or group_size % STEP == 0
    return x.dtype in HALF_DTYPES and groups and weight.minimums is None and rows_begin_on(16, x, weight.codes)


def run(x, weight, out, bias, stream, tiling: Int4GemmTiling | None, gated: bool) -> None:
    """Launch after checks."""
    check_arrays(x, weight, out, bias, gated, fits(x, weight), "", STEP)
    (m, k), n = x.shape, weight.codes.shape[0]
    if 0 in out.shape:
        return
    tiling, steps = tiling or choose_tiling(m, out.shape[1], k, gated), ceil_div(k, STEP)
    tiling.check()
    check(tiling.splits <= steps, f"{tiling}: x has {k} columns, {steps} steps of {STEP}, which must be as many as the splits")
    chosen = int4_gemm_kernel(tiling, k // weight.scales.shape[1], x.dtype.name, gated, stored_together(out, x.dtype))
    x_map = tensor_map(x, (tiling.tokens, STEP), promotion=128)
    rows = tiling.rows // 2 if gated else tiling.rows
    weight_map = tensor_map(weight.codes.view("uint16"), (rows, CODE_BYTES // 2), swizzle=CODE_BYTES, promotion=128)
    arguments = (x_map, weight_map, weight.scales, weight.zeros, bias, out, steps)
    blocks, cluster = ceil_div(n, tiling.rows) * ceil_div(m, tiling.tokens) * tiling.splits, (tiling.splits, 1, 1)
    launch(chosen, blocks, tiling.threads, arguments, stream, tiling.shared_bytes, cluster if tiling.splits > 1 else None)


def int4_gemm(x, weight, out, bias=None, stream=None, tiling: Int4GemmTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out` [M, N]: x [M, K], float16 or bfloat16; weight: an Int4Weight without minimums.

    out and bias are of x's dtype or float32. `tiling` overrides the choice by shape. Raises KernelArgumentError for anything else (see
    `fits`), and on a GPU of another compute capability than 9.0.
    """
    run(x, weight, out, bias, stream, tiling, False)


def gated_int4_gemm(x, gate_up, out, stream=None, tiling: Int4GemmTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]; gate_up: an Int4Weight [2 I, K], the gate's rows first. Errors as above."""
    run(x, gate_up, out, None, stream, tiling, True)
