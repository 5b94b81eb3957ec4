"""Ladders for GEMM: each kernel computes out [M, N] = x [M, K] @ weight [N, K].T + bias [N]."""

import functools

import ml_dtypes
import numpy as np

from minllm.course.checks import speed, speed_problems
from minllm.course.checks.evidence import note
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.checks.traffic import expect_bytes
from minllm.course.exercise import Exercise, Rung
from minllm.sim import detecting, tracing, unwritten

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TRANSPOSED = "you read weight[k, n]; it is [out_features, in_features], so element k of output feature n is weight[n, k]."
ROW_BIAS = "bias[m] was added, the token's; it belongs to the output feature: bias[n]."
NO_BIAS = "the bias was not added; where it is not None, bias[n] belongs to every out[m, n]."
SECTOR = 32  # bytes
SMALL_TILE = (8, 4, 2)  # outputs, step of k, outputs per thread: 16 threads
LAST_ONLY = "the result is the last product alone: add the products up with +=."
OTHER_LENGTH = "the sum has as many terms as x has rows; it has K = x.shape[1]."
ONE_LANE = "the sum has elements 0, 32, 64, ... of K, those of one lane alone: warp_sum(total) adds up all 32 lanes."
ONE_TOO_FEW = "the last element of each row was left out: k runs from 0 to K - 1."


def operands(m, n, k, dtype=np.float32, seed=0):
    """x [m, k], weight [n, k], bias [n]."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k), n)]


def multiply(matmul, x, weight, bias=None, **options):
    """Run the reader's GEMM into a poisoned array, and compare."""
    out = unwritten((len(x), len(weight)), x.dtype)
    matmul(x, weight, out, bias, **options)
    wide_x, wide_weight = x.astype(np.float64), weight.astype(np.float64)
    expected = wide_x @ wide_weight.T + (0 if bias is None else bias.astype(np.float64))
    suspects = tile_suspects(wide_x, wide_weight, *options["tile"]) if bias is None and "tile" in options else []
    suspects += [(ONE_TOO_FEW, wide_x[:, :-1] @ wide_weight[:, :-1].T + (0 if bias is None else bias.astype(np.float64)))]
    suspects.append((LAST_ONLY, wide_x[:, -1:] @ wide_weight[:, -1:].T + (0 if bias is None else bias.astype(np.float64))))
    suspects.append((ONE_LANE, wide_x[:, ::32] @ wide_weight[:, ::32].T + (0 if bias is None else bias.astype(np.float64))))
    if len(x) < x.shape[1]:
        suspects.append((OTHER_LENGTH, wide_x[:, : len(x)] @ wide_weight[:, : len(x)].T))
    if x.shape[1] == len(weight):
        suspects.append((TRANSPOSED, wide_x @ wide_weight))
    if bias is not None:
        suspects.append((NO_BIAS, wide_x @ wide_weight.T))
        if len(x) <= len(bias):
            suspects.append((ROW_BIAS, wide_x @ wide_weight.T + bias.astype(np.float64)[: len(x), None]))
    expect("out", out, expected, ("token", "feature"), suspects)


def tile_suspects(x, weight, tile, tile_k, per_thread):
    """(mistake, its result [M, N]) for mistakes in a tiled GEMM."""
    across, (rows, columns) = tile // per_thread, np.indices((len(x), len(weight)))
    row_tile, column_tile = rows // tile * tile, columns // tile * tile
    ty, i, tx, j = rows % across, rows % tile // across, columns % across, columns % tile // across
    k = np.arange(x.shape[1])
    whole_tiles = x.shape[1] // tile_k * tile_k
    right = row_tile + ty + i * across, column_tile + tx + j * across
    side_by_side = row_tile + ty * per_thread + i, column_tile + tx * per_thread + j
    return [
        ("only the first tile of K was added: the loop goes on, by tile_k, until first_k reaches K.", x[:, :tile_k] @ weight[:, :tile_k].T),
        ("the last tile of K was left out where it is not whole: copy_tile fills up with zeros, so go on while first_k < K.",
         x[:, :whole_tiles] @ weight[:, :whole_tiles].T),
        ("tiles overlap: the next one begins tile_k further, not 1.", x * np.minimum(k + 1, tile_k) @ weight.T),
        ("the last k of each tile was left out: k runs from 0 to tile_k - 1.", x * (k % tile_k != tile_k - 1) @ weight.T),
        ("x_tile was copied from k = 0 in every step: both tiles begin at first_k.", x[:, k % tile_k] @ weight.T),
        ("weight_tile was copied from k = 0 in every step: both tiles begin at first_k.", x @ weight[:, k % tile_k].T),
        ("weight_tile gets the rows of weight from first_column on, not from first_row on.",
         picked(x, weight, right[0], row_tile + columns % tile)),
        ("x_tile gets the rows of x from first_row on, not from first_column on.", picked(x, weight, column_tile + rows % tile, right[1])),
        ("the column of weight_tile is tx + j * across: tx counts along the features, ty along the tokens.",
         picked(x, weight, right[0], column_tile + ty + j * across)),
        ("the column of x_tile is ty + i * across: ty counts along the tokens, tx along the features.",
         picked(x, weight, row_tile + tx + i * across, right[1])),
        ("a thread's tokens lie `across` apart, ty + i * across, and not side by side.", picked(x, weight, side_by_side[0], right[1])),
        ("a thread's features lie `across` apart, tx + j * across, and not side by side.", picked(x, weight, right[0], side_by_side[1])),
        ("x_tile gets the rows of x from first_row on, weight_tile those of weight from first_column on: here they are exchanged.",
         picked(x, weight, column_tile + rows % tile, row_tile + columns % tile)),
        ("ty and tx are exchanged: ty chooses the row of x_tile, tx that of weight_tile.",
         picked(x, weight, row_tile + tx + i * across, column_tile + ty + j * across)),
        ("a thread's outputs lie `across` apart, ty + i * across and tx + j * across, and not side by side.",
         picked(x, weight, *side_by_side)),
    ]  # fmt: skip


def picked(x, weight, rows, columns):
    """[M, N]: the dot product of row rows[m, n] of x and row columns[m, n] of weight; zero if either is beyond the edge."""
    inside = (rows < len(x)) & (columns < len(weight))
    return np.where(inside, (x @ weight.T)[np.minimum(rows, len(x) - 1), np.minimum(columns, len(weight) - 1)], 0)


def one_element(matmul, **options):
    """Check 3 * 4 = 12, computed by one thread; all others of the block are idle."""
    multiply(matmul, np.float32([[3]]), np.float32([[4]]), **options)


def square(matmul, **options):
    """Check a square weight, K = N, for which a transposed weight also has a valid shape."""
    x, weight, _ = operands(3, 5, 5)
    multiply(matmul, x, weight, **options)


def around(matmul, sizes, **options):
    """Check sizes around those of a tile."""
    for m, n, k in sizes:
        x, weight, _ = operands(m, n, k)
        multiply(matmul, x, weight, **options)


def with_bias(matmul, **options):
    """Check a GEMM with bias."""
    multiply(matmul, *operands(2, 7, 3), **options)


def long_sum(matmul, terms, **options):
    """Check a sum of many ones in bfloat16, a type that cannot count beyond 256 in steps of 1."""
    x, weight = np.ones((1, terms), BFLOAT16), np.ones((1, terms), BFLOAT16)
    out = unwritten((1, 1), np.float32)
    matmul(x, weight, out, **options)
    rounded = "the sum stopped at 256, where bfloat16 can no longer count by ones: hold it in a float32."
    expect("out", out, np.float64([[terms]]), ("token", "feature"), [(rounded, np.float64([[256]]))])


def budget(matmul, m, n, k, times, advice, **options):
    """Check that operands are read at most `times` (x, weight) times, and that the output is written once."""
    x, weight, _ = operands(m, n, k)
    out = unwritten((m, n), np.float32)
    read = {"x": times[0] * x.nbytes, "weight": times[1] * weight.nbytes}
    expect_bytes(lambda: matmul(x, weight, out, **options), read, {"out": out.nbytes}, advice)


def coalesced(matmul):
    """Check the loads of rows of 64 numbers: two of 128 bytes per operand and warp."""
    x, weight, _ = operands(1, 4, 64)
    out = unwritten((1, 4), np.float32)
    with detecting(False), tracing() as traces:
        matmul(x, weight, out)
    sectors = sum(trace.arrays["weight"].read.sectors for trace in traces)
    note("sectors of weight", sectors)
    if sectors > weight.nbytes // SECTOR:
        raise Mismatch(
            f"the warps load {sectors} sectors of 32 bytes of weight; {weight.nbytes // SECTOR} hold it.\nLikely cause: each lane walks a "
            "stretch of its own. At every step the lanes should read neighbours: k = lane, lane + 32, ..."
        )


def correct(sizes, **options):
    """The rungs that check only the numbers."""
    rung = functools.partial(functools.partial, **options)
    return (
        Rung("one element by hand", "3 * 4 = 12: one thread is enough, and the others of its block must keep out.", rung(one_element)),
        Rung("the weight's layout", "a weight is stored [out_features, in_features], a row an output feature.", rung(square)),
        Rung("sizes around the block's edge", "the last block reaches beyond the arrays: guard it.", rung(around, sizes=sizes)),
        Rung("bias", "bias[n] is added once, and may be None.", rung(with_bias)),
        Rung("a long sum in bfloat16", "numbers are stored in 16 bits and added up in 32.", rung(long_sum, terms=300)),
    )


EXERCISES = (
    Exercise(
        name="matmul.naive",
        lesson=5,
        title="a GEMM, one thread per output element",
        module="minllm.kernels.matmul.ladder.naive",
        entry="matmul_naive",
        stage="matmul",
        task="Where row and column are inside out: add up x[row, k] * weight[column, k] over k in float32, add bias[column] where there is "
        "a bias (it may be None), and store the sum in out[row, column].",
        hints=(
            "The grid is rounded up, so some threads have no element: `if row < out.shape[0] and column < out.shape[1]:`.",
            "float32(x[row, k]) makes a float32 of whatever the array stores; begin with total = float32(0.0).",
        ),
        rungs=(
            *correct([(1, 1, 1), (15, 17, 3), (16, 16, 2), (17, 15, 5), (1, 31, 7)]),
            Rung(
                "byte budget",
                "a thread needs each number of its two rows once, and writes once.",
                functools.partial(
                    budget,
                    m=16,
                    n=16,
                    k=12,
                    times=(16, 16),
                    advice="something is read in every step that is needed once, or out holds the running sum: take a variable.",
                ),
            ),
            speed.rung(
                "minllm.kernels.matmul.ladder.naive:matmul_naive",
                speed_problems.product(1024),
                "neighbouring threads no longer share rows of x or weight, or a literal 0.0 made the sum a float64.",
            ),
        ),
    ),
    Exercise(
        name="matmul.gemv",
        lesson=10,
        title="a GEMV, one warp per row of the weight",
        module="minllm.kernels.matmul.ladder.warp_per_row",
        entry="matmul_warp_per_row",
        stage="matmul",
        most_rows=8,
        task="Lane l multiplies elements l, l + 32, l + 64, ... of row n of weight with those of row m of x, and adds them up in float32. "
        "warp_sum(total) is the sum over all 32 lanes; every lane calls it. Then lane 0 adds bias[n] where there is a bias (it may be "
        "None), and stores the sum in out[m, n].",
        hints=(
            "range(lane, x.shape[1], WARP) gives each lane its elements, and neighbouring lanes neighbouring ones.",
            "A lane without an element has the sum 0, and calls warp_sum with the others: it must not stand in a branch or a loop.",
        ),
        rungs=(
            *correct([(1, 1, 1), (1, 3, 31), (1, 2, 32), (2, 5, 33), (3, 2, 100)]),
            Rung(
                "coalescing",
                "a warp reads 32 neighbouring elements at a time: as few sectors of 32 bytes as there are.",
                coalesced,
            ),
            Rung(
                "byte budget",
                "each weight is read once per token, by one lane.",
                functools.partial(
                    budget,
                    m=2,
                    n=3,
                    k=96,
                    times=(3, 2),
                    advice="every lane takes its own elements: lane, lane + 32, ...",
                ),
            ),
            speed.rung(
                "minllm.kernels.matmul.ladder.warp_per_row:matmul_warp_per_row",
                speed_problems.gemv,
                "lanes read elements that lie apart, or a literal 0.0 made the sum a float64.",
            ),
        ),
    ),
    Exercise(
        name="matmul.tiled",
        lesson=5,
        title="a GEMM through tiles in shared memory, several outputs per thread",
        module="minllm.kernels.matmul.ladder.tiled",
        entry="matmul_tiled",
        stage="matmul",
        simulated_options=dict(tile=(4, 32, 2)),
        task="Both tiles are in shared memory. A thread owns per_thread x per_thread outputs: for each k of the tile, "
        "total[i, j] += x_tile[k, ty + i * across] * weight_tile[k, tx + j * across].",
        hints=(
            "The barrier above waits until all have copied, the one below until all have multiplied: the loop itself needs none.",
            "A thread has per_thread x per_thread outputs: read per_thread values of x for each k into a local array, then each value of "
            "the weight once.",
        ),
        rungs=(
            *correct([(1, 1, 1), (7, 9, 3), (8, 8, 4), (9, 7, 5), (17, 3, 11)], tile=SMALL_TILE),
            Rung(
                "byte budget",
                "every element that comes from memory serves a whole tile of outputs.",
                functools.partial(
                    budget,
                    m=16,
                    n=16,
                    k=12,
                    times=(2, 2),
                    tile=SMALL_TILE,
                    advice="each thread copies its share of a tile, once: copy_tile spreads the elements over the block.",
                ),
            ),
            speed.rung(
                "minllm.kernels.matmul.ladder.tiled:matmul_tiled",
                speed_problems.product(2048),
                "x_tile is read again for each output: read a thread's values of x once per step, and keep them in a local array.",
            ),
        ),
    ),
)
