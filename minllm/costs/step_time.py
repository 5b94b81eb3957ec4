"""Predicted time of a decode step by weight format, while steps.py and serving.py compute floors.

A kernel's time is its launch, plus its reads and its arithmetic, which overlap in part:

    t = t_launch + (m^p + a^p)^(1/p)        m = bytes / B      a = FLOPs / C

p = infinity would be the roofline, p = 1 a sum. For one row of x, GEMVs of quantised weights start sooner (t_gemv) and are memory-bound, as
those of 16-bit weights, except for NF4, whose limit is decoding; in a step their kernel also computes norms and rotations (t_prepare).
A few more rows of 4-bit weights (Decoding.column_rows) fill columns of mma.sync: the lanes that decode cannot multiply at the same time,
only reads overlap with both, and each block of columns takes as long as decoding. Beyond, some warps decode tiles while others multiply, as
fast as 16-bit weights (NF4: a little slower), but with a longer start (t_start), because few tiles fill the GPU only if warps and blocks
split K; a tile takes the time of its bytes or of decoding, whichever is longer:

    1 row             t = t_gemv + max((m^p + a^p)^(1/p), weights / F)
    to column_rows    t = t_launch + max(m, weights (1 + columns) / G)
    tiles             t = t_start + (max(m, weights / T)^p + (a / E)^p)^(1/p)

Up to FEW_ROWS the arithmetic is that of the actual rows; beyond, that of whole tiles of TILE_ROWS.

The constants are fitted to docs/results, rows "matmul, quantised", rates relative to those of a copy and of cuBLAS. Those of bfloat16, fp8
and int8, G of int4, and t_prepare are fitted to an H200; F and G of NF4 to an H200 and an H100, with one to eight rows; t_start, T and E to
68 GEMMs of an H100, with 16 to 2,048 rows; an H200 reads a tile faster than it decodes one. On both machines, predictions for the four
GEMMs of a layer together are off by at most 8 %, except that of int8 with 2,048 rows on the H100, which is 13 % too long: one rate serves
int8 and fp8. Those for whole steps of two shapes and six formats are off by at most 9 % (tests/costs/test_step_time.py).

A mixture of experts reads the experts that its tokens touch, in GEMVs up to GATHERED_ROWS tokens and in grouped GEMMs beyond. It launches
more kernels: the router's GEMM, beyond one token the norm, and for grouped GEMMs the choice, a counting sort and the sum of the experts.
With that, steps of Qwen3-30B-A3B's shape in bfloat16 at a context of 1,024 are predicted within 3 % on an H200 (measured 2026-11-28,
commit 379a025a): 2.31 ms for one sequence (measured 2.24), 10.96 for 16 (10.98), 16.7 for 64 (16.94).

Source of the form: Hockney, "Parametrization of computer performance", 1987: a start-up time and a rate. The p-norm is our addition.
"""

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

from minllm.costs.stages import Stage, decode_stages, forward_stages
from minllm.models.config import ModelConfig
from minllm.models.parts.terms import Sizes
from minllm.weights.format import WeightFormat
from minllm.weights.formats import WEIGHT_FORMATS

LAUNCH, OVERLAP_NORM = 3.1e-6, 2.43
START_OF_GEMV, PREPARE = 2.2e-6, 1.2e-6  # t_gemv and t_prepare
START_OF_TILES = 8.5e-6  # t_start of 4-bit weights
OF_COPY, OF_GEMM, CODES_OF_GEMM = 1.036, 1.012, 1.85  # rates relative to a copy, and to cuBLAS in bfloat16
COLUMN_ROWS = 8  # rows of x per column block of mma.sync
HOST_LAUNCH = 1e-4  # seconds per kernel that the host launches, outside a graph
KERNELS_OF_DRAFTS = 5  # kernels per step that accept drafts and find new n-grams
FUSED_ROWS = 64  # most rows for which 16-bit GEMM kernels also compute norms and rotations
ROWS_OF_GEMV = 1  # most rows for which quantised GEMVs also compute norms and rotations, quantise x, and hide decoding behind HBM
JOINED = ("MLP activation", "expert activation", "shared expert activation")  # stages that the kernel of gate and up includes
GATHERED_ROWS = 4  # most tokens whose experts GEMVs compute, which also sum them
FEW_ROWS, TILE_ROWS = 256, 128
MOST_COMPARED = 256  # largest batch of a comparison of formats
ALIKE = 0.05  # steps that differ by at most this share count as equally fast: predictions are no better
PRODUCTS = 4  # GEMMs per layer
HEAD = ("final norm", "lm_head", "sampling")  # stages that compute only the rows that get logits
ONCE = ("embedding", *HEAD)  # stages outside the layers
PLAIN = WEIGHT_FORMATS["bfloat16"]


class Decoding(NamedTuple):
    """How fast the kernels of a 4-bit format are: F to T in weights per FLOP of 16-bit GEMMs, E as a share of their rate."""

    one_row: float  # F
    column_rows: int  # most rows of x that fill columns of mma.sync
    columns: float  # G
    tiles: float  # T
    gemm: float  # E


HIDDEN = math.inf  # behind HBM or arithmetic
DECODING = {
    "int4_g128": Decoding(HIDDEN, 16, 0.0181, 0.0067, 1),
    "int4": Decoding(HIDDEN, 8, 0.0091, 0.0067, 1),  # groups of 32: a scale for every fourth word of codes
    "nf4": Decoding(0.0069, 8, 0.0097, 0.006, 0.95),
}
COMPARED = ("bfloat16", "fp8", "int8", *DECODING)


@dataclass(frozen=True)
class StepRates:
    """Rates of a GPU, per second."""

    bytes: float
    flops: float  # FLOPs of 16-bit GEMMs
    code_flops: float  # FLOPs of GEMMs over 8-bit codes

    @classmethod
    def of(cls, copy_tb_s: float, tflops: float) -> "StepRates":
        """The rates of a GPU on which a copy reaches copy_tb_s TB/s and cuBLAS in bfloat16 reaches tflops TFLOP/s."""
        copy, gemm = 1e12 * copy_tb_s, 1e12 * tflops
        return cls(OF_COPY * copy, OF_GEMM * gemm, CODES_OF_GEMM * gemm)


def product_seconds(stage: Stage, rows: int, layers: int, rates: StepRates, weight_format: WeightFormat) -> float:
    """Seconds of a stage with one GEMM per layer, over `layers` layers; rows: of x."""
    moved, name = stage.bytes / rates.bytes, weight_format.name
    computed = rows if rows <= FEW_ROWS else -(-rows // TILE_ROWS) * TILE_ROWS
    arithmetic = stage.flops * computed / rows / (rates.code_flops if name in ("int8", "fp8") else rates.flops)
    is_one_row = not weight_format.is_plain and rows <= ROWS_OF_GEMV
    if name not in DECODING:
        return layers * (START_OF_GEMV if is_one_row else LAUNCH) + overlapped(moved, arithmetic)
    decoding, weights = DECODING[name], stage.flops / (2 * rows)
    if is_one_row:
        return layers * START_OF_GEMV + max(overlapped(moved, arithmetic), weights / (decoding.one_row * rates.flops))
    if rows <= decoding.column_rows:
        return layers * LAUNCH + max(moved, weights * (1 + -(-rows // COLUMN_ROWS)) / (decoding.columns * rates.flops))
    return layers * START_OF_TILES + overlapped(max(moved, weights / (decoding.tiles * rates.flops)), arithmetic / decoding.gemm)


def overlapped(moved: float, arithmetic: float) -> float:
    """Seconds of reads and arithmetic that overlap in part: the p-norm of both."""
    return (moved**OVERLAP_NORM + arithmetic**OVERLAP_NORM) ** (1 / OVERLAP_NORM)


def decode_step_seconds(
    config: ModelConfig, batch: int, context: int, rates: StepRates, weight_format: WeightFormat = PLAIN
) -> float:  # fmt: skip
    """Seconds of a step of `batch` sequences with `context` keys each.

    weight_format: that of the layers' weights, one of COMPARED. Keys and values are in 16 bits. With more than one sequence, 8-bit codes
    need two more kernels per layer, which quantise the outputs of attention and of the activation; with one, the four GEMVs of a layer
    prepare x themselves.
    """
    stages = decode_stages(config, batch, context, weight_format=weight_format)
    seconds = sum(stage_seconds(stage, batch, config, rates, weight_format) for stage in stages)
    if batch <= ROWS_OF_GEMV:
        return seconds + (0 if weight_format.is_plain else PRODUCTS * config.num_hidden_layers * PREPARE)
    return seconds + (2 * config.num_hidden_layers * LAUNCH if weight_format.name in ("int8", "fp8") else 0)


def stage_seconds(stage: Stage, rows: int, config: ModelConfig, rates: StepRates, weight_format: WeightFormat) -> float:
    """Seconds of a stage of `rows` tokens, over all layers."""
    layers = 1 if stage.name in ONCE else config.num_hidden_layers
    if "projection" in stage.name or stage.name == "lm_head":
        return product_seconds(stage, rows, layers, rates, PLAIN if stage.name == "lm_head" else weight_format)
    kernels = layers * kernels_of(stage.name, rows, config, weight_format)
    return LAUNCH * kernels + overlapped(stage.bytes / rates.bytes, stage.flops / rates.flops)


def kernels_of(name: str, rows: int, config: ModelConfig, weight_format: WeightFormat) -> int:
    """Kernels per layer of a stage that is not a projection; 0 if a projection's kernel includes it."""
    if name == "router":
        return 2 if rows > GATHERED_ROWS else 1  # its GEMM, and the choice, which the GEMVs include
    if name == "shared expert sum":
        return 2  # the gate's GEMM and the gated sum
    if name == "expert sum":
        return 2 if rows > GATHERED_ROWS else 0  # with the counting sort
    if name == "MLP norm" and config.num_experts:
        return int(rows > ROWS_OF_GEMV or config.shared_expert_intermediate_size > 0)
    is_fused = rows <= (FUSED_ROWS if weight_format.is_plain else ROWS_OF_GEMV) or name in JOINED
    return int(name in ("attention", "sampling") or not is_fused)


@dataclass(frozen=True)
class StepTimes:
    """Predicted times of steps with 16-bit weights and activations; StepCosts (serving.py) has floors."""

    config: ModelConfig
    rates: StepRates

    def linear_seconds(self, tokens: int, rows: int) -> float:
        """Seconds of everything but attention, for `tokens` tokens, of which `rows` get logits."""
        stages = forward_stages(self.config, Sizes(tokens, rows, visible=0, read=0))
        return sum(self._seconds(stage, rows if stage.name in HEAD else tokens) for stage in stages if stage.name != "attention")

    def other_seconds(self, verifies: bool) -> float:
        """Seconds of other launches: attention, and with drafts the merge of its parts and the drafts' kernels."""
        attention = self.config.num_hidden_layers * LAUNCH
        return 2 * attention + KERNELS_OF_DRAFTS * LAUNCH if verifies else attention

    def launched_seconds(self, tokens: int) -> float:
        """Seconds of a forward pass without logits, with kernels that the host launches one by one."""
        stages = forward_stages(self.config, Sizes(tokens, 0, visible=0, read=0))
        kernels = sum(1 if stage.name in ONCE else self.config.num_hidden_layers for stage in stages if stage.name not in HEAD)
        return max(kernels * HOST_LAUNCH, self.linear_seconds(tokens, 0))

    def _seconds(self, stage: Stage, rows: int) -> float:
        return stage_seconds(stage, rows, self.config, self.rates, PLAIN) if rows else 0.0


def most_sequences_ahead(config: ModelConfig, context: int, rates: StepRates, first: str, second: str) -> int:
    """The batch up to which steps with weights in `first` are faster than in `second`; 0 if none is."""
    slower = (batch for batch in range(1, MOST_COMPARED + 1) if step_ratio(config, batch, context, rates, first, second) >= 1)
    return next(slower, MOST_COMPARED + 1) - 1


def sequences_alike(config: ModelConfig, context: int, rates: StepRates, first: str, second: str, turn: int) -> tuple[int, int] | None:
    """(smallest, largest) batch around `turn` at which the steps of both differ by at most ALIKE; None if there is none.

    turn: their most_sequences_ahead.
    """

    def until_apart(batches: range) -> list[int]:
        ratios = ((batch, step_ratio(config, batch, context, rates, first, second)) for batch in batches)
        return [batch for batch, _ in itertools.takewhile(lambda one: abs(one[1] - 1) <= ALIKE, ratios)]

    alike = [*until_apart(range(turn, 0, -1)), *until_apart(range(turn + 1, MOST_COMPARED + 1))]
    return (min(alike), max(alike)) if alike else None


def step_ratio(config: ModelConfig, batch: int, context: int, rates: StepRates, first: str, second: str) -> float:
    """The time of a step with weights in `first`, in steps with weights in `second`."""
    mine, other = (decode_step_seconds(config, batch, context, rates, WEIGHT_FORMATS[name]) for name in (first, second))
    return mine / other
