"""How long a step takes, by format of the weights: near the truth, where steps.py and serving.py give what no step can be faster than.

A kernel takes its launch, and its reading and its arithmetic, which overlap in part:

    t = t_launch + (m^p + a^p)^(1/p)        m = bytes / B      a = FLOPs / C

p = infinity would be the roofline, p = 1 a sum. For one row of x the GEMV of quantised weights starts sooner, t_gemv, and is memory-bound,
except for NF4, where decoding at a rate F is the limit; in a step it computes norms and rotations too, t_prepare. For more rows, lanes that
decode 4-bit weights cannot multiply at the same time, so only reading hides behind both. Up to BATCHED_ROWS rows are columns of mma.sync,
and each column block takes as long as decoding. Up to FLAT_ROWS a warp decodes int4 that it multiplies itself. NF4, and int4 for more rows,
is decoded in tiles by some warps while others multiply, a little slower than 16-bit weights, and with a longer start, t_start, because few
tiles fill the GPU only if warps and blocks divide K:

    1 row               t = t_gemv + max(m, weights / F)
    to BATCHED_ROWS     t = t_launch + max(m, weights (1 + columns) / G)
    to FLAT_ROWS        t = t_launch + max(m, weights / D + a)
    tiles               t = t_start + max(m, weights / T, a / E)

Up to FEW_ROWS the kernels take any number of rows; beyond, arithmetic is that of whole tiles of TILE_ROWS.

All numbers are fitted (docs/results, rows "matmul, quantised"), the rates relative to what a copy and cuBLAS reach: on H200s, to GEMMs of
1 to 2,048 rows, 64 of bfloat16, fp8 and int8 and 68 of 4-bit weights, and t_prepare to a step; t_start beyond TILE_ROWS to eight GEMMs of
int4 and E of NF4 to four on one H100. Over the four GEMMs of a layer the model is off by at most 8 %, and over whole steps of two shapes
and four formats by 9 % (tests/costs/test_step_time.py).

Source of the form: Hockney, "Parametrization of computer performance", 1987: a start-up time and a rate. The p-norm is ours.
"""

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
START_OF_TILES = 14e-6  # t_start of 4-bit weights up to TILE_ROWS rows
START_OF_MORE = 7.5e-6  # t_start of more rows, whose tiles are smaller and leave K to fewer blocks
OF_COPY, OF_GEMM, CODES_OF_GEMM = 1.036, 1.012, 1.85  # B and C for 16 and for 8 bits, as shares of the rates of a copy and of cuBLAS in bfloat16
COLUMN_ROWS = 8  # rows of x in a column block of mma.sync
HOST_LAUNCH = 1e-4  # seconds of a kernel that no graph launches
KERNELS_OF_DRAFTS = 5  # a step's kernels that accept drafts and find new n-grams
FUSED_ROWS = 64  # up to which 16-bit products' kernels compute norms and rotations too
ROWS_OF_GEMV = 1  # up to which kernels of quantised products also compute norms and rotations, quantise x, and hide decoding behind HBM
JOINED = "MLP activation"  # computed by the kernel of gate and up
FEW_ROWS, TILE_ROWS = 256, 128
BATCHED_ROWS = 16  # up to which rows are columns of mma.sync
FLAT_ROWS = 64  # up to which a warp decodes int4 that it multiplies itself
PRODUCTS = 4  # of a layer
HEAD = ("final norm", "lm_head", "sampling")  # stages of the rows that get logits
ONCE = ("embedding", *HEAD)  # stages that are not in the layers
PLAIN = WEIGHT_FORMATS["bfloat16"]


class Decoding(NamedTuple):
    """How fast the kernels of a 4-bit format are: F to T in weights per FLOP of 16-bit GEMMs, E as a share of their rate."""

    one_row: float  # F
    columns: float  # G
    flat: float | None  # D; None: the format has no such kernel
    tiles: float  # T
    gemm: float  # E


HIDDEN = math.inf  # behind HBM or arithmetic
DECODING = {
    "int4_g128": Decoding(HIDDEN, 0.0181, 0.00629, HIDDEN, 0.94),
    "int4": Decoding(HIDDEN, 0.0091, 0.00217, 0.0027, 0.84),  # groups of 32: a scale for every fourth word of codes; T is Q4_1's
    "nf4": Decoding(0.0072, 0.0102, None, 0.0048, 0.72),
}
COMPARED = ("bfloat16", "fp8", "int8", *DECODING)


@dataclass(frozen=True)
class StepRates:
    """What a GPU does per second."""

    bytes: float
    flops: float  # of 16-bit GEMMs
    code_flops: float  # of GEMMs of 8-bit codes

    @classmethod
    def of(cls, copy_tb_s: float, tflops: float) -> "StepRates":
        """From the rates of a copy and of cuBLAS in bfloat16."""
        copy, gemm = 1e12 * copy_tb_s, 1e12 * tflops
        return cls(OF_COPY * copy, OF_GEMM * gemm, CODES_OF_GEMM * gemm)


def product_seconds(stage: Stage, rows: int, layers: int, rates: StepRates, weight_format: WeightFormat) -> float:
    """The seconds of a stage that multiplies by weights, once per layer."""
    moved, name = stage.bytes / rates.bytes, weight_format.name
    computed = rows if rows <= FEW_ROWS else -(-rows // TILE_ROWS) * TILE_ROWS
    arithmetic = stage.flops * computed / rows / (rates.code_flops if name in ("int8", "fp8") else rates.flops)
    is_one_row = not weight_format.is_plain and rows <= ROWS_OF_GEMV
    if name not in DECODING:
        return layers * (START_OF_GEMV if is_one_row else LAUNCH) + overlapped(moved, arithmetic)
    decoding, weights = DECODING[name], stage.flops / (2 * rows)
    if is_one_row:
        return layers * START_OF_GEMV + max(overlapped(moved, arithmetic), weights / (decoding.one_row * rates.flops))
    if rows <= BATCHED_ROWS:
        return layers * LAUNCH + max(moved, weights * (1 + -(-rows // COLUMN_ROWS)) / (decoding.columns * rates.flops))
    if rows <= FLAT_ROWS and decoding.flat:
        return layers * LAUNCH + max(moved, weights / (decoding.flat * rates.flops) + arithmetic)
    start = START_OF_TILES if rows <= TILE_ROWS else START_OF_MORE
    return layers * start + max(moved, weights / (decoding.tiles * rates.flops), arithmetic / decoding.gemm)


def overlapped(moved: float, arithmetic: float) -> float:
    """Seconds of reading and arithmetic together."""
    return (moved**OVERLAP_NORM + arithmetic**OVERLAP_NORM) ** (1 / OVERLAP_NORM)


def decode_step_seconds(
    config: ModelConfig, batch: int, context: int, rates: StepRates, weight_format: WeightFormat = PLAIN
) -> float:  # fmt: skip
    """The seconds of a step of `batch` sequences that see `context` keys each, with the layers' weights in one of the formats COMPARED.

    Keys and values are in 16 bits. For more than one row codes of 8 bits need two kernels more per layer, which quantise what attention and
    the activation wrote; for one, the four products of a layer prepare x themselves.
    """
    stages = decode_stages(config, batch, context, weight_format=weight_format)
    seconds = sum(stage_seconds(stage, batch, config, rates, weight_format) for stage in stages)
    if batch <= ROWS_OF_GEMV:
        return seconds + (0 if weight_format.is_plain else PRODUCTS * config.num_hidden_layers * PREPARE)
    return seconds + (2 * config.num_hidden_layers * LAUNCH if weight_format.name in ("int8", "fp8") else 0)


def stage_seconds(stage: Stage, rows: int, config: ModelConfig, rates: StepRates, weight_format: WeightFormat) -> float:
    """The seconds of a stage of `rows` tokens, over all layers."""
    layers = 1 if stage.name in ONCE else config.num_hidden_layers
    if "projection" in stage.name or stage.name == "lm_head":
        return product_seconds(stage, rows, layers, rates, PLAIN if stage.name == "lm_head" else weight_format)
    is_fused = rows <= (FUSED_ROWS if weight_format.is_plain else ROWS_OF_GEMV) or stage.name == JOINED
    is_launched = stage.name in ("attention", "sampling") or not is_fused
    return layers * LAUNCH * is_launched + overlapped(stage.bytes / rates.bytes, stage.flops / rates.flops)


@dataclass(frozen=True)
class StepTimes:
    """What a model's steps take with weights and activations in 16 bits, where StepCosts (serving.py) has their floor."""

    config: ModelConfig
    rates: StepRates

    def linear_seconds(self, tokens: int, rows: int) -> float:
        """The seconds of everything but attention, for `tokens` tokens, of which `rows` get logits."""
        stages = forward_stages(self.config, Sizes(tokens, rows, visible=0, read=0))
        return sum(self._seconds(stage, rows if stage.name in HEAD else tokens) for stage in stages if stage.name != "attention")

    def other_seconds(self, verifies: bool) -> float:
        """The seconds of launches besides: attention, which merges what blocks make of a verification's keys, and the kernels of drafts."""
        attention = self.config.num_hidden_layers * LAUNCH
        return 2 * attention + KERNELS_OF_DRAFTS * LAUNCH if verifies else attention

    def launched_seconds(self, tokens: int) -> float:
        """The seconds of a forward whose kernels the host launches one by one."""
        stages = forward_stages(self.config, Sizes(tokens, 0, visible=0, read=0))
        kernels = sum(1 if stage.name in ONCE else self.config.num_hidden_layers for stage in stages)
        return max(kernels * HOST_LAUNCH, self.linear_seconds(tokens, 0))

    def _seconds(self, stage: Stage, rows: int) -> float:
        return stage_seconds(stage, rows, self.config, self.rates, PLAIN) if rows else 0.0


def most_sequences_ahead(config: ModelConfig, context: int, rates: StepRates, first: str, second: str, most: int = 256) -> int:
    """Up to which batch steps with weights in `first` are faster than with `second`; 0 if not even alone."""

    def is_ahead(batch: int) -> bool:
        mine, other = (decode_step_seconds(config, batch, context, rates, WEIGHT_FORMATS[name]) for name in (first, second))
        return mine < other

    return next((batch - 1 for batch in range(1, most + 1) if not is_ahead(batch)), most)
