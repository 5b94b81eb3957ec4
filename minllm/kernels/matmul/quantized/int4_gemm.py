"""W4A16 GEMM on Hopper for many rows of x: tiles of int4 become 16 bits in registers, which are wgmma's left operand.

    w[n, k] = (code[n, k] - zero[n, g]) * scale[n, g],  g = k // group_size          rounded to x's dtype, the scale first
    out[m, n] = sum over k of x[m, k] * w[n, k]  (+ bias[n])
    gated:  out[m, n] = silu(gate[m, n]) * up[m, n]         gate and up: such sums with the first and the second half of weight's rows

A block computes 128 outputs, 64 per warpgroup, of up to 256 rows of x. In a step of 64 inputs TMA loads 32 bytes of codes per row of
weight, and x. A warpgroup decodes the codes of the next step while the tensor cores multiply those of this one, and while one warpgroup
decodes, the other multiplies. Decoding takes four instructions per pair of weights, and a decoded pair multiplies up to 256 rows.
int4_wgmma.py, for up to 64 rows, adds the sums of a group in float32 instead and rounds no weight, which takes twice the registers.

2 M N K FLOPs, N K / 2 bytes of codes for every 256 rows of x, and M K b bytes of x for every 128 rows of weight, from L2 for the most part:
blocks that run together share both. How codes become numbers: int4_wgmma.py.

Source: PTX ISA, "wgmma.mma_async" (register operand), "Swizzling modes"; Frantar et al. 2024, "MARLIN", section 3.4.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div, rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.flat.flat import padded_rows
from minllm.kernels.matmul.flat.mainloop import make_added
from minllm.kernels.matmul.flat.output import PADDING, make_keep_sums, make_write, stored_together
from minllm.kernels.matmul.quantized.int4_wgmma import MAGIC, check_arrays, make_zero_pair
from minllm.kernels.vector import load_words
from minllm.runtime.device import sms_here
from minllm.runtime.kernel import check, kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles import tma
from minllm.tiles.pipeline import PipelineState, make_pipeline
from minllm.tiles.shared import SharedTile, first_tile_address
from minllm.tiles.warpgroup import ROWS, THREADS, sync_blocks
from minllm.tiles.wgmma import make_wgmma

STEP, CODE_BYTES = 64, 32  # inputs of a step, and the bytes of their codes in a row of weight: the swizzle's span
WORDS = STEP // 8  # of codes, in a row of a step
SHARED_BYTES_OF_A_BLOCK = 227 * 1024
MINUS_ZEROS = 0x80008000  # a pair: fma with it multiplies, and keeps the sign of zero


class Int4GemmTiling(NamedTuple):
    """`warpgroups` of 64 rows of weight each, and `tokens` rows of x, per block; `stages` steps of K are in flight."""

    warpgroups: int
    tokens: int
    stages: int

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
        check(self.warpgroups in (1, 2) and self.stages >= 2, f"{self}: 1 or 2 warpgroups, and at least 2 stages")
        check(self.tokens in range(8, 257, 8), f"{self}: 8, 16, ... or 256 tokens")
        limit = f"{self}: {self.shared_bytes} bytes of shared memory; a block has {SHARED_BYTES_OF_A_BLOCK}"
        check(self.shared_bytes <= SHARED_BYTES_OF_A_BLOCK, limit)


def choose_tiling(m: int, n: int, gated: bool) -> Int4GemmTiling:
    """The largest tile with which every SM has a block, down to 64 x 64; an estimate that has not been measured."""
    rows, chunks = 2 * n if gated else n, ceil_div(m, 256)
    warpgroups = 2 if ceil_div(rows, 2 * ROWS) * chunks >= sms_here() else 1
    tokens = padded_rows(ceil_div(m, chunks))
    while tokens > 64 and ceil_div(rows, warpgroups * ROWS) * ceil_div(m, tokens) < sms_here():
        tokens = padded_rows(ceil_div(tokens, 2))
    stages = (SHARED_BYTES_OF_A_BLOCK - 2048) // Int4GemmTiling(warpgroups, tokens, 1).stage_bytes
    return Int4GemmTiling(warpgroups, tokens, min(8, stages))


class Tile(NamedTuple):
    """A block's part of the work: rows of weight (gated: also those of the second half), rows of x, steps of K."""

    row: int
    second_row: int
    token: int
    steps: int


def make_produce(tiling: Int4GemmTiling, gated: bool, pipeline):
    """The device function of the producer, one thread: it keeps the stages full."""
    x_bytes, code_bytes = tiling.x_tile.bytes, tiling.rows * CODE_BYTES

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, tile):
        """All of a tile's steps, in the order in which they are multiplied."""
        ptx.griddepcontrol_wait()
        state = PipelineState(uint32(0), uint32(0))
        for step in range(tile.steps):
            stage = pipeline.producer_acquire(ring, state)
            pipeline.producer_expect(stage, x_bytes + code_bytes)
            tma.load_2d(stage, 0, x_map, step * STEP, tile.token)
            tma.load_2d(stage, x_bytes, weight_map, step * (CODE_BYTES // 2), tile.row)
            if gated:
                tma.load_2d(stage, x_bytes + code_bytes // 2, weight_map, step * (CODE_BYTES // 2), tile.second_row)
            state = pipeline.advance(state)

    return produce


def make_decode(dtype: str, group_size: int):
    """(load_pairs, load, decode): device functions that make a lane's fragments of a step, of rows g and g + 8 of a warp's 16."""
    parts, zero_pair = max(1, STEP // group_size), make_zero_pair(dtype)
    words_of_part = WORDS // parts
    bits, _, ones = MAGIC[dtype]
    magic, pack = bits << 16 | bits, ptx.pack_bf16x2 if dtype == "bfloat16" else ptx.pack_f16x2
    fma = ptx.fma_bf16x2 if dtype == "bfloat16" else ptx.fma_f16x2

    @cuda.jit(device=True, forceinline=True)
    def load_pairs(scales, zeros, low, high, step, pairs):
        """pairs[4 * part + ...] = -(128 + zero) and scale of row low, and of row high; all as pairs of the same number."""
        for part in range(parts):
            group = min(uint32((uint32(step) * uint32(STEP) + uint32(part * 32)) // uint32(group_size)), uint32(scales.shape[1] - 1))
            low_scale, high_scale = float32(scales[low, group]), float32(scales[high, group])
            pairs[4 * part], pairs[4 * part + 1] = zero_pair(zeros, low, group), pack(low_scale, low_scale)
            pairs[4 * part + 2], pairs[4 * part + 3] = zero_pair(zeros, high, group), pack(high_scale, high_scale)

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

    return load_pairs, load, decode


def make_consume(tiling: Int4GemmTiling, dtype: str, group_size: int, gated: bool, pipeline):
    """The device function of a consumer: the sums of 64 rows of weight for all rows of x of the tile, left in shared memory."""
    rows, stage_words, x_bytes = tiling.rows, tiling.stage_bytes // 4, tiling.x_tile.bytes
    load_pairs, load, decode = make_decode(dtype, group_size)
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
    def consume(memory, first_word, ring, tile, thread, scales, zeros):
        """memory[first_word + token * (rows + PADDING) + row] = the sums."""
        place = (thread >> 5) * 16 + (thread >> 2 & 7)
        last = int32(scales.shape[0] - 1)
        low, high = row_of(place, tile, last), row_of(place + 8, tile, last)
        x = ptx.keep_register(wgmma.right(ring.stages))
        line = uint32(first_word + x_bytes // 4 + place * (CODE_BYTES // 4))
        mask = uint32(0x000F000F) | uint32(tile.steps >> 31)  # steps are not negative; a mask that the compiler knows is loaded per pair
        sums = cuda.local.array(registers, float32)
        words, pairs = cuda.local.array(fragments, uint32), cuda.local.array(pair_count, uint32)
        even, odd = cuda.local.array(fragments, uint32), cuda.local.array(fragments, uint32)
        for i in range(registers):
            sums[i] = 0
        load_pairs(scales, zeros, low, high, 0, pairs)
        state = pipeline.state(0)
        pipeline.consumer_wait(ring, state)
        load(memory, line, words)
        decode(words, mask, pairs, even)
        for step in range(0, tile.steps, 2):
            load_pairs(scales, zeros, low, high, step + 1, pairs)
            wgmma.multiply(sums, even, pipeline.operand(x, state), 1)
            following = pipeline.advance(state)
            if step + 1 < tile.steps:
                pipeline.consumer_wait(ring, following)
                load(memory, uint32(line + following.slot * stage_words), words)
                decode(words, mask, pairs, odd)
            wgmma.wait(sums)
            ptx.keep_registers(even, fragments)
            pipeline.consumer_release(ring, state)
            if step + 1 < tile.steps:
                load_pairs(scales, zeros, low, high, step + 2, pairs)
                wgmma.multiply(sums, odd, pipeline.operand(x, following), 1)
                state = pipeline.advance(following)
                if step + 2 < tile.steps:
                    pipeline.consumer_wait(ring, state)
                    load(memory, uint32(line + state.slot * stage_words), words)
                    decode(words, mask, pairs, even)
                wgmma.wait(sums)
                ptx.keep_registers(odd, fragments)
                pipeline.consumer_release(ring, following)
        ptx.bar_sync(1, consumers)  # all tiles have been multiplied: the sums may lie in their place
        keep_sums(sums, 0, memory, first_word, (thread >> 5) * 16, thread & 31)
        ptx.bar_sync(1, consumers)

    return consume


@functools.cache
def int4_gemm_kernel(tiling: Int4GemmTiling, group_size: int, dtype: str, gated: bool, together: int):
    """The kernel for x of `dtype`; gated and together as in flat_wgmma_kernel."""
    tiling.check()
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes, tiling.warpgroups, by_thread=True)
    produce, consume = make_produce(tiling, gated, pipeline), make_consume(tiling, dtype, group_size, gated, pipeline)
    consumers, columns, tokens = tiling.warpgroups * THREADS, tiling.rows // 2 if gated else tiling.rows, tiling.tokens
    write = make_write(tiling.rows, consumers, dtype, gated, together, make_added(1, 1))
    barriers_at, two_consumers = tiling.shared_bytes - 1024 - 16 * tiling.stages, tiling.warpgroups == 2

    @kernel(launch_bounds=(tiling.threads, 1), dependent_launch=True)
    def int4_gemm_kernel(x_map, weight_map, scales, zeros, bias, out, steps):
        """x [M, K] in boxes [tokens, 64], codes [N, K / 2] in boxes [rows, 32 bytes] (gated: half the rows), scales [N, groups], zeros
        alike or None, bias [N] or None, out [M, N] or [M, N / 2]."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        thread, m = int32(cuda.threadIdx.x), int32(out.shape[0])
        first_stage = first_tile_address(memory)
        chunks = int32((m + tokens - 1) // tokens)  # chunks of x run side by side: they share the codes in L2
        column, token = int32(cuda.blockIdx.x // chunks * columns), int32(cuda.blockIdx.x % chunks * tokens)
        tile = Tile(column, int32(column + out.shape[1]), token, int32(steps))
        ring = pipeline.ring(first_stage, first_stage + barriers_at, 0)
        first_word = (first_stage - ptx.shared_address(memory, 0)) >> uint32(2)
        if thread == 0:
            pipeline.init(ring)
        sync_blocks(1)
        if thread < THREADS:
            if two_consumers:
                ptx.setmaxnreg_dec(40)
            if thread == 0:
                produce(x_map, weight_map, ring, tile)
        else:
            if two_consumers:
                ptx.setmaxnreg_inc(232)
            consume(memory, first_word, ring, tile, int32(thread - THREADS), scales, zeros)
            rows = min(int32(tokens), int32(m - token))
            write(bias, None, None, out, memory, first_word, token, rows, column, int32(thread - THREADS))

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
    tiling = tiling or choose_tiling(m, out.shape[1], gated)
    chosen = int4_gemm_kernel(tiling, k // weight.scales.shape[1], x.dtype.name, gated, stored_together(out, x.dtype))
    x_map = tensor_map(x, (tiling.tokens, STEP), promotion=128)
    rows = tiling.rows // 2 if gated else tiling.rows
    weight_map = tensor_map(weight.codes.view("uint16"), (rows, CODE_BYTES // 2), swizzle=CODE_BYTES, promotion=128)
    arguments = (x_map, weight_map, weight.scales, weight.zeros, bias, out, ceil_div(k, STEP))
    launch(chosen, ceil_div(n, tiling.rows) * ceil_div(m, tiling.tokens), tiling.threads, arguments, stream, tiling.shared_bytes)


def int4_gemm(x, weight, out, bias=None, stream=None, tiling: Int4GemmTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out` [M, N]: x [M, K], float16 or bfloat16; weight: an Int4Weight without minimums.

    out and bias are of x's dtype or float32. `tiling` overrides the choice by shape. Raises KernelArgumentError for anything else (see
    `fits`), and on a GPU of another compute capability than 9.0.
    """
    run(x, weight, out, bias, stream, tiling, False)


def gated_int4_gemm(x, gate_up, out, stream=None, tiling: Int4GemmTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]; gate_up: an Int4Weight [2 I, K], the gate's rows first. Errors as above."""
    run(x, gate_up, out, None, stream, tiling, True)
