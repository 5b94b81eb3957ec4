"""How a mixed-input GEMM is divided: a block computes 64 outputs per warpgroup for up to 256 rows of x, in steps of 64 inputs."""

from typing import NamedTuple

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.arguments import padded_rows
from minllm.kernels.matmul.flat.output import PADDING
from minllm.kernels.quantization.decoder import STEP
from minllm.runtime.device import SHARED_BYTES_PER_BLOCK, sms_here
from minllm.runtime.kernel import check
from minllm.tiles.shared import ALIGNMENT, SharedTile
from minllm.tiles.warpgroup import ROWS, THREADS

MOST_TOKENS = 256  # most rows of x per block
TWO_BLOCKS_UP_TO = 64  # rows of x up to which two blocks of a large weight share an SM: with few sums, one does not keep it busy
DIVIDED_FROM = 64  # rows of x per block from which its warpgroups divide K if blocks would have to
FEWEST_STAGES = 6  # for warpgroups that divide K: three each
TILES_PER_GROUP = 8  # chunks of x in a group of the tile order (output_tiles.py)
PERSISTENT_FROM = 128  # rows of x per block from which a block computes one tile after another, if no blocks or warpgroups divide K


class MixedInputTiling(NamedTuple):
    """A block has `warpgroups` of 64 rows of weight each and `tokens` rows of x; `stages` steps of K are in flight.

    splits: blocks of a cluster that divide K. k_groups: warpgroups of a block that have the same 64 rows and divide K; of two, one takes
    the even steps, the other the odd ones. blocks: blocks per SM for which registers suffice. batches: a persistent block's outputs leave
    through shared memory in this many batches of tokens; 0: a block computes one tile, and its sums take the place of the stages.

    row_bytes of the methods: bytes of codes and scales per row of weight and step.
    """

    warpgroups: int
    tokens: int
    stages: int
    splits: int = 1
    k_groups: int = 1
    blocks: int = 1
    batches: int = 0

    @property
    def rows(self) -> int:
        """Rows of weight per block."""
        return self.warpgroups // self.k_groups * ROWS

    @property
    def threads(self) -> int:
        """Threads per block: the producer's warpgroup, and the consumers."""
        return (1 + self.warpgroups) * THREADS

    @property
    def x_tile(self) -> SharedTile:
        """A step's tile of x; codes and scales follow it in the stage."""
        return SharedTile(self.tokens, STEP)

    def columns(self, gated: bool) -> int:
        """Columns of out per block."""
        return self.rows // 2 if gated else self.rows

    def pairs_rows(self, gated: bool) -> bool:
        """Whether a lane's two rows of weight are a row of gate and the same row of up."""
        return gated and self.batches > 0

    def rows_apart(self, gated: bool) -> int:
        """Rows of the tile from the first to the second of a lane's two rows."""
        return self.rows // 2 if self.pairs_rows(gated) else 8

    def store_box(self, gated: bool) -> tuple[int, int]:
        """(tokens, columns) of out that one TMA store takes: a batch of a consumer of a persistent block."""
        return self.tokens // self.batches, self.columns(gated) // self.warpgroups

    @property
    def staging_bytes(self) -> int:
        """Bytes of shared memory through which TMA stores the outputs of a block, 16 bits each; gated, half of it is used."""
        return self.tokens // self.batches * self.rows * 2 if self.batches else 0

    def stage_bytes(self, row_bytes: int) -> int:
        """Bytes of a step's x, codes and scales, rounded up so that the next stage is aligned."""
        return ceil_div(self.x_tile.bytes + self.rows * row_bytes, ALIGNMENT) * ALIGNMENT

    def ring_bytes(self, row_bytes: int) -> int:
        """Bytes of the stages and, if a block computes one tile, of the sums that later overwrite them."""
        sums = 0 if self.batches else self.tokens * (self.rows + PADDING) * 4
        return max(self.stages * self.stage_bytes(row_bytes), sums)

    def shared_bytes(self, row_bytes: int) -> int:
        """Bytes of the ring, the outputs that leave, two barriers per stage, and room to begin at a multiple of 1024."""
        return self.ring_bytes(row_bytes) + self.staging_bytes + 16 * self.stages + 1024

    def check(self, row_bytes: int, table_bytes: int = 0) -> None:
        """Raise KernelArgumentError unless this tiling can be launched with a table of `table_bytes` in shared memory."""
        counts = self.warpgroups in (1, 2) and self.stages >= 2 and self.splits in (1, 2, 3, 4, 8)
        check(counts, f"{self}: 1 or 2 warpgroups, at least 2 stages, and 1, 2, 3, 4 or 8 splits")
        check(self.k_groups in (1, self.warpgroups), f"{self}: k_groups are 1, or 2 of 2 warpgroups")
        own = f"{self}: {self.k_groups} k_groups need a multiple of {self.k_groups} stages, and at least two stages each"
        check(self.stages % self.k_groups == 0 and self.stages >= 2 * self.k_groups, own)
        check(self.tokens in range(8, MOST_TOKENS + 1, 8), f"{self}: 8, 16, ... or 256 tokens")
        whole = self.batches == 0 or self.tokens % (16 * self.batches) == 0
        check(
            whole and (self.batches == 0 or self.splits == self.k_groups == 1), f"{self}: batches of a multiple of 16 tokens, K undivided"
        )
        needed, room = self.shared_bytes(row_bytes) + table_bytes, SHARED_BYTES_PER_BLOCK // self.blocks
        check(needed <= room, f"{self}: {needed} bytes of shared memory; a block has {room}")


def parts_of_k(tiles: int, steps: int) -> int:
    """Return how many blocks divide K: as many as there are SMs for, with at least four of `steps` each.

    A cluster must fit in one group of some 16 SMs, so clusters of more than two blocks that fill an SM leave an eighth of the SMs unused.
    """
    in_clusters = sms_here() * 7 // 8
    fitting = (splits for splits in (8, 4, 3) if splits * tiles <= in_clusters and 4 * splits <= steps)
    return next(fitting, 2 if 2 * tiles <= sms_here() and 8 <= steps else 1)


def largest_tiling(m: int, n: int, k: int, gated: bool, row_bytes: int, table_bytes: int = 0, k_groups: int = 1) -> MixedInputTiling:
    """Return the tiling with the largest tile, as many parts of K as there are SMs for, and up to 8 stages."""
    rows, steps, chunks = 2 * n if gated else n, ceil_div(k, STEP), ceil_div(m, MOST_TOKENS)
    tokens, warpgroups = padded_rows(ceil_div(m, chunks)), 2 if rows > ROWS or k_groups == 2 else 1
    tile = MixedInputTiling(warpgroups, tokens, 1, 1, k_groups)
    tiles = ceil_div(rows, tile.rows) * ceil_div(m, tokens)
    if tokens <= TWO_BLOCKS_UP_TO and tiles > sms_here():
        tile = tile._replace(blocks=2)
    return deepest(tile._replace(splits=parts_of_k(tiles, steps // k_groups)), row_bytes, table_bytes)


def deepest(tiling: MixedInputTiling, row_bytes: int, table_bytes: int) -> MixedInputTiling:
    """Return this tiling with as many stages as shared memory allows, up to 8."""
    room = SHARED_BYTES_PER_BLOCK // tiling.blocks - 2048 - table_bytes - tiling.staging_bytes
    stages = min(8, room // tiling.stage_bytes(row_bytes))
    return tiling._replace(stages=stages // tiling.k_groups * tiling.k_groups)


def persistent(tiling: MixedInputTiling, row_bytes: int, table_bytes: int) -> MixedInputTiling:
    """Return this tiling with room for the outputs of a tile, or of a half or quarter of its tokens if they leave less than four stages."""
    tilings = (deepest(tiling._replace(batches=batches), row_bytes, table_bytes) for batches in (1, 2, 4))
    return next(one for one in tilings if one.stages >= 4 or one.batches == 4)


def choose_tiling(m: int, n: int, k: int, gated: bool, row_bytes: int, table_bytes: int = 0, copied: bool = True) -> MixedInputTiling:
    """Return the fastest of some fifteen tilings for the weights of an 8B model on an H100, or one within 8 % of it.

    That is the largest, unless its blocks must divide K for many tokens: then warpgroups divide K first, as long as there is room for
    enough stages. If there is not, blocks with half of the tokens do so, if the GPU has an SM for each. copied: TMA can store the outputs.
    """
    tiling = largest_tiling(m, n, k, gated, row_bytes, table_bytes)
    if copied and tiling.splits == 1 and tiling.warpgroups == 2 and tiling.tokens >= PERSISTENT_FROM:
        return persistent(tiling, row_bytes, table_bytes)
    if tiling.splits == 1 or tiling.warpgroups == 1 or tiling.tokens < DIVIDED_FROM:
        return tiling
    divided = largest_tiling(m, n, k, gated, row_bytes, table_bytes, k_groups=2)
    if divided.stages >= FEWEST_STAGES:
        return divided
    halves = deepest(divided._replace(tokens=padded_rows(ceil_div(divided.tokens, 2)), splits=1), row_bytes, table_bytes)
    blocks = ceil_div(2 * n if gated else n, halves.rows) * ceil_div(m, halves.tokens)
    return halves if blocks <= sms_here() else tiling
