"""GEMMs of a warpgroup: wgmma on tiles in shared memory, with sums in registers.

    wgmma = make_wgmma(weight_tile, "bfloat16", left=x_tile)      # sums [64, N] (+)= left [64, K] right [N, K].T
    wgmma.multiply(sums, x, weight, add)                          # starts the GEMM and commits its group; the threads continue
    wgmma.wait(sums)                                              # waits for all GEMMs that the warpgroup has started

The right operand is a tile in shared memory, [N, K], or [K, N] with right_major "mn". The left one is another tile, or words in registers.
An operand in shared memory is given by its matrix descriptor, 64 bits, to which a step along K adds a constant; adding 1 moves it by 16
bytes.

8-bit codes, float8_e4m3fn (float32 sums) and int8 (int32 sums), are stored in such a tile as pairs: a row of 64 elements holds 128 codes.

PTX ISA, "wgmma.mma_async" and "Matrix descriptor".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from minllm import ptx
from minllm.tiles.shared import SharedTile

DTYPES = {"bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "e4m3", "int8": "s8"}
DEPTH = 16  # depth of one instruction along K, in 16-bit elements


@cuda.jit(device=True, forceinline=True)
def sum_row(i, thread):
    """The row of [64, n] to which element i of a thread's sums belongs; thread: 0 to 127."""
    return thread // 32 * 16 + i // 2 % 2 * 8 + thread % 32 // 4


@cuda.jit(device=True, forceinline=True)
def sum_column(i, thread):
    """The column of [64, n] to which element i of a thread's sums belongs; thread: 0 to 127."""
    return i // 4 * 8 + thread % 4 * 2 + i % 2


class Wgmma(NamedTuple):
    """The GEMM of a warpgroup: `registers` sums per thread, of Numba's type `sum_type`, and device functions."""

    registers: int
    sum_type: Any
    left: Callable  # left(address) -> operand of a left tile at a shared address
    right: Callable  # right(address) -> operand of a right tile
    multiply: Callable  # multiply(sums, left, right, add): start sums += left right, or sums = left right if add is 0
    wait: Callable  # wait(sums): wait until all GEMMs of this warpgroup are complete


def make_operand(tile: SharedTile, major: str, halves: bool):
    """(operand(address), descriptor(operand, step)): the operand of a tile, and the descriptor for the step-th 16 of its depth."""
    leading, stride, swizzle = 16 if major == "k" else tile.panel_bytes, 8 * tile.swizzle, tile.swizzle
    low_bits, high_bits = (int(ptx.matrix_descriptor.py_func(0, leading, stride, swizzle)) >> shift & 0xFFFFFFFF for shift in (0, 32))
    steps_per_panel, panel_bytes, step_bytes = tile.panel_columns // DEPTH, tile.panel_bytes, DEPTH * tile.swizzle

    @cuda.jit(device=True, forceinline=True)
    def whole(address):
        return ptx.matrix_descriptor(address, leading, stride, swizzle)

    @cuda.jit(device=True, forceinline=True)
    def lower_half(address):
        return uint32(low_bits | (address >> 4))

    @cuda.jit(device=True, forceinline=True)
    def offset(step):
        """Bytes from the tile's start to the step-th 16 of its depth."""
        return step // steps_per_panel * panel_bytes + step % steps_per_panel * 32 if major == "k" else step * step_bytes

    @cuda.jit(device=True, forceinline=True)
    def advance_whole(operand, step):
        return ptx.advance_descriptor(operand, offset(step))

    @cuda.jit(device=True, forceinline=True)
    def advance_half(operand, step):
        return uint64(uint32(uint32(operand) + offset(step) // 16)) | uint64(high_bits) << uint64(32)

    return (lower_half, advance_half) if halves else (whole, advance_whole)


def make_wgmma(right: SharedTile, dtype: str, left: SharedTile | None = None, right_major: str = "k", halves: bool = False) -> Wgmma:
    """The operations for sums [64, n] of tiles of `dtype`. left None: the left operand is in registers, 4 words per 16 of the depth.

    halves: operands are the lower halves of descriptors, which keep_register can hold over a loop; the upper half is the same for all tiles
    of a layout. Use it only with keep_register: FlashAttention-3 takes 56 instructions more with halves that are not kept.
    """
    n, depth = (right.rows, right.columns) if right_major == "k" else (right.columns, right.rows)
    steps, registers = -(-depth // DEPTH), n // 2
    instruction = ptx.make_wgmma(n, DTYPES[dtype], a="shared" if left else "registers", b_major=right_major)
    left_operand, left_at = make_operand(left or right, "k", halves)
    right_operand, right_at = make_operand(right, right_major, halves)

    @cuda.jit(device=True, forceinline=True)
    def multiply_shared(sums, left, right, add):
        ptx.wgmma_fence()
        for step in range(steps):
            instruction(sums, left_at(left, step), right_at(right, step), add if step == 0 else 1)
        ptx.wgmma_commit_group()

    @cuda.jit(device=True, forceinline=True)
    def multiply_registers(sums, left, right, add):
        ptx.wgmma_fence()
        for step in range(steps):
            instruction(sums, left, 4 * step, right_at(right, step), add if step == 0 else 1)
        ptx.wgmma_commit_group()

    @cuda.jit(device=True, forceinline=True)
    def wait(sums):
        ptx.wgmma_wait_group_0()
        ptx.keep_registers(sums, registers)  # nothing reads them before the wait

    sum_type = int32 if dtype == "int8" else float32
    return Wgmma(registers, sum_type, left_operand, right_operand, multiply_shared if left else multiply_registers, wait)
