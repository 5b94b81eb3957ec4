"""How a GEMV on tensor cores is divided among warps, blocks and clusters."""

from typing import NamedTuple

from minllm.kernels.arguments import ceil_div
from minllm.kernels.quantization.decoder import INPUTS, Format
from minllm.runtime.kernel import check
from minllm.tiles.warp import WARP

PAIRS, TILE_ROWS = 8, 16  # row pairs of a tile (outputs.py), and its rows
MOST_ROWS = 16  # most rows of x
SMS = 132  # tilings are chosen for an H100 and an H200, which have so many
LONG_ROW = 64  # steps of a row that is long
MOST_GROUPS, MOST_TABLE_BYTES = 4, 35 * 1024  # groups per step; bytes of NF4's tables and the barriers
BUFFERS = 2  # buffers of sums (sums.py)
# Percentage of an SM's memory that is shared memory. Loads in flight have their places in the rest, L1 (gemv.py), but the next kernel
# starts early only if there is room for its blocks too. A decode step of one sequence, the 8B shape in fp8 with an fp8 cache, on an H200:
# 3.42 ms by the driver's choice, 2.79 with 0, 2.57 with 25, 2.56 with 50.
CARVEOUT = 50


class TensorCoreGemvTiling(NamedTuple):
    """Blocks of `warps` warps, of which `splits` share a tile of 16 rows of weight, in clusters of `cluster` blocks.

    The warps that share a tile and the blocks of a cluster divide K. A warp has `unroll` steps in flight. tokens: columns of mma.sync that
    differ, 1, 8 or 16. Registers suffice for `blocks` blocks per SM.
    """

    warps: int
    splits: int
    cluster: int
    unroll: int
    tokens: int
    blocks: int = 2

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.warps * WARP

    @property
    def tiles(self) -> int:
        """Tiles that a cluster computes at a time."""
        return self.warps // self.splits

    @property
    def pairs(self) -> int:
        """Row pairs of these tiles per block of the cluster: each block collects the sums of its own pairs."""
        return self.tiles * PAIRS // self.cluster

    @property
    def parts_of_k(self) -> int:
        """Warps of a cluster that divide the inputs of a tile."""
        return self.splits * self.cluster

    @property
    def sums(self) -> int:
        """Sums that a block collects for its pairs: one per row of a pair, part of K, and token."""
        return self.parts_of_k * self.tokens * 2 * self.pairs

    def chunks(self, steps: int) -> int:
        """Chunks of `unroll` steps per warp, for rows of this many steps."""
        return ceil_div(steps, self.parts_of_k * self.unroll)

    def steps_of_block(self, steps: int) -> int:
        """Steps per block, for rows of this many steps; those of the last block may go past the row."""
        return self.chunks(steps) * self.unroll * self.splits

    def padded_steps(self, steps: int) -> int:
        """Steps of all blocks of a cluster."""
        return self.steps_of_block(steps) * self.cluster

    def shared_bytes(self, steps: int) -> int:
        """Most shared memory of a block in bytes, for rows of this many steps: x, its sums, those of outputs, tables."""
        return self.steps_of_block(steps) * self.tokens * (2 * INPUTS + 4 * MOST_GROUPS) + BUFFERS * 4 * self.sums + MOST_TABLE_BYTES

    def check(self, m: int) -> None:
        """Raise KernelArgumentError unless this tiling can be launched for m rows of x."""
        check(1 <= self.warps <= 16 and self.unroll >= 1, f"{self}: 1 to 16 warps, and at least one step in flight")
        check(self.warps % self.splits == 0, f"{self}: the warps of a block divide evenly into groups of `splits`")
        check(self.cluster in ((1,) if self.tokens == 1 else (1, 2, 4, 8)), f"{self}: a cluster has 1, 2, 4 or 8 blocks, with one token 1")
        check(self.tiles * PAIRS % self.cluster == 0, f"{self}: {self.tiles * PAIRS} pairs of rows for {self.cluster} blocks")
        check(self.tokens in (1, 8, 16), f"{self}: 1, 8 or 16 tokens")
        check(m <= self.tokens, f"{self} for {m} rows of x")


def choose_tiling(found: Format, m: int, n: int, k: int) -> TensorCoreGemvTiling:
    """Return the tiling for x [m, k] and a weight [n, k]."""
    return choose_for_one_row(found, n, k) if m == 1 else choose_for_rows(m, n, k)


def choose_for_one_row(found: Format, n: int, k: int) -> TensorCoreGemvTiling:
    """Return the fastest of some fifteen tilings for the weights of 8B and 70B models on an H100 and an H200, or one within 5 % of it.

    Two blocks of up to 8 warps share an SM. One block of up to 16 is faster for few outputs in 4 bits, which leave one or two tiles per SM,
    and for many outputs in 8 bits, which need no decoding. A warp has at least four steps of a tile, or two in small weights of 4 bits. Of
    the numbers of warps down to half of the most, the largest that pads K by at most 1/16 is taken, or else the one that pads least: 14 or
    7 for 14,336 inputs.
    """
    steps, is_small = k // found.inputs, n <= 4096
    if steps >= LONG_ROW and not is_small and found.codes is None:
        return of_long_row(steps, ceil_div(n, TILE_ROWS))
    most = 8 if is_small == (found.codes is not None) else 16
    splits = max(1, min(most, steps // (2 if is_small and found.codes is None else 4)))
    tilings = (of_one_row(steps, one) for one in range(splits, splits // 2, -1))
    return min(tilings, key=lambda tiling: max(tiling.padded_steps(steps), steps * 17 // 16))


def of_long_row(steps: int, tiles: int) -> TensorCoreGemvTiling:
    """Return the tiling for long rows in 4 bits, which every block normalises by itself: one block of 16 warps per SM.

    All warps share a tile if an SM has less than three, else 8 or, to pad less, 4. H200, 2026-11-29, groups of 32, half of a 70B layer's
    weights, one row, against two blocks of 8 warps: 5120x8192 9.98 -> 8.68 µs, 28672x8192 35.69 -> 33.34, 8192x14336 19.42 -> 18.29.
    """
    tilings = [TensorCoreGemvTiling(16, splits, 1, 4, 1, 1) for splits in ((16,) if tiles < 3 * SMS else (8, 4))]
    return min(tilings, key=lambda tiling: tiling.padded_steps(steps))


def of_one_row(steps: int, splits: int) -> TensorCoreGemvTiling:
    """Return the tiling with `splits` warps per tile: two blocks of up to 8 warps per SM, or one block of more."""
    return TensorCoreGemvTiling(splits * max(1, 8 // splits), splits, 1, min(4, ceil_div(steps, splits)), 1, 1 if splits > 8 else 2)


def choose_for_rows(m: int, n: int, k: int) -> TensorCoreGemvTiling:
    """Return the fastest of some twenty tilings for the weights of an 8B model on an H100, or one within 5 % of it.

    Eight blocks divide K, and a warp's share is four steps. Long rows take blocks of 16 warps, one per SM, which keep fewer copies of x. A
    large weight has many tiles: with up to eight tokens it takes clusters of four blocks, with more one block of 12 warps per SM.
    """
    steps, tokens = k // INPUTS, 8 if m <= 8 else MOST_ROWS
    cluster = next((one for one in (8, 4, 2) if steps >= one), 1)
    splits = next((one for one in (1, 2, 4) if steps <= 4 * cluster * one), 8)
    warps, blocks = (16, 1) if splits >= 4 else (8, 2)
    if splits == 1 and cluster == 8 and n > 8192:
        if tokens == 8:
            cluster, splits = 4, 2
        else:
            warps, blocks = 12, 1
    return TensorCoreGemvTiling(warps, splits, cluster, min(4, ceil_div(steps, cluster * splits)), tokens, blocks)
