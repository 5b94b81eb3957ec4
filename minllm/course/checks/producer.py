"""Ladder for the producer of a ring: which tiles it loads, and what it waits for."""

import ml_dtypes
import numpy as np

from minllm.course.checks import speed, speed_problems
from minllm.course.checks.mismatch import expect
from minllm.course.exercise import Exercise, Rung
from minllm.sim import unwritten

ROWS, COLUMNS, DEPTH = 64, 256, 64  # a tile of out, and a step of K


def product(matmul, steps, tiles=1):
    """Check x @ weight.T for x [64, steps * 64] and weight [tiles * 256, steps * 64], small integers, whose sums are exact."""
    random = np.random.default_rng(0)
    x, weight = (random.integers(-2, 3, (rows, steps * DEPTH)).astype(ml_dtypes.bfloat16) for rows in (ROWS, tiles * COLUMNS))
    out = unwritten((ROWS, tiles * COLUMNS), np.float32)
    matmul(x, weight, out)
    exact_x, exact_weight = x.astype(np.float64), weight.astype(np.float64)
    first_x, first_weight = (np.tile(array[:, :DEPTH], steps) for array in (exact_x, exact_weight))
    suspects = [
        ("every step loaded the first tiles: step s begins at column s * depth.", first_x @ first_weight.T),
        ("every step loaded the first tile of x: step s begins at column s * depth.", first_x @ exact_weight.T),
        ("every step loaded the first tile of weight: step s begins at column s * depth.", exact_x @ first_weight.T),
        ("every block loaded the first rows of weight: its own begin at `column`.", np.tile(exact_x @ exact_weight[:COLUMNS].T, tiles)),
    ]
    expect("out", out, exact_x @ exact_weight.T, ("m", "n"), suspects)


EXERCISES = (
    Exercise(
        name="matmul.producer",
        lesson=5,
        title="the producer of a GEMM: it keeps a ring of tiles full",
        module="minllm.kernels.matmul.ladder.warp_specialized",
        entry="matmul_warp_specialized",
        task="For each step: wait until a stage of the ring is empty (pipeline.producer_acquire(ring, state) returns it), say how many "
        "bytes will arrive (pipeline.producer_expect(stage, stage_bytes)), and start two loads, tma.load_2d(stage, offset, map, k, row): "
        "the tile of x at offset 0 from x_map, and the tile of weight at offset x_bytes from weight_map, whose rows begin at `column`. "
        "Both begin at int32(step * depth). Then go on to the next stage: state = pipeline.advance(state).",
        hints=(
            "The loads run on after load_2d has returned: nothing here waits for them. The consumer does.",
            "acquire, expect, load, load, advance: five lines.",
        ),
        rungs=(
            Rung("one step", "two tiles, and the number of their bytes.", lambda matmul: product(matmul, 1)),
            Rung("several steps", "step s loads columns s * depth and on.", lambda matmul: product(matmul, 3)),
            Rung("round the ring", "a stage is filled again only after the consumer has released it.", lambda matmul: product(matmul, 6)),
            Rung("two blocks", "each loads the rows of weight of its own tile.", lambda matmul: product(matmul, 1, tiles=2)),
            speed.rung("minllm.kernels.matmul.ladder.warp_specialized:matmul_warp_specialized", speed_problems.product(2048),
                       "the producer waits for its loads, or for more than the stage that it fills."),
        ),
    ),
)  # fmt: skip
