"""The matrix product's test cases, shared by the simulator's tests and the GPU's: shapes, inputs, and how far a result may be off.

Errors. A float32 sum of K products and a bias differs from the exact one by at most (K + 1) u (|x| @ |weight|.T + |bias|), in any order of
summation, where u is one rounding's relative error: 2**-24 for fused multiply-adds (N. Higham, "Accuracy and Stability of Numerical
Algorithms", section 3.1), and 2**-23 for tensor cores, which cut off bits instead of rounding. Then comes the rounding to out's dtype, of
which we allow twice its error.
"""

from dataclasses import dataclass

import numpy as np

from minllm.kernels.matmul import VARIANTS
from minllm.kernels.matmul.flat.tiles import FlatTiling
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.gemv.gemv import GemvTiling
from minllm.kernels.matmul.tensor_core import TensorCoreTiling
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, HALF_STEP, SMALLEST_STEP, poisoned, random

ON_TENSOR_CORES = ("tensor_core", "warpgroup", "warp_specialized", "wgmma", "flat", "fixed_order")
UNIT = dict.fromkeys(("naive", "tiled", "vectorized", "warp_per_row", "gemv"), 2.0**-24) | dict.fromkeys(ON_TENSOR_CORES, 2.0**-23)

# Around tiles of 8, 16 and 32, vectors of 4 and 8, and a warp's 128 or 256 elements of K: one less, exact, one more, primes, and 1.
SHAPES = [
    (1, 1, 1),
    (1, 17, 8),
    (2, 16, 7),
    (3, 5, 264),
    (4, 9, 255),
    (7, 15, 16),
    (8, 13, 40),
    (8, 3, 520),
    (15, 16, 33),
    (16, 16, 16),
    (16, 17, 64),
    (17, 15, 47),
    (19, 37, 71),
    (31, 32, 24),
    (33, 18, 32),
]
MANY_ROWS = [shape for shape in SHAPES if shape[0] > 8]
VECTORIZED_SHAPES = [shape for shape in SHAPES if shape[2] % 8 == 0]  # the others go to tiled
FEW_ROWS = [shape for shape in SHAPES if shape[0] <= 8]

# Around tiles of 64 and 128 and steps of 64; K that is no multiple of 8 goes to tensor_core.
WGMMA_SHAPES = [(1, 1, 8), (17, 15, 47), (64, 64, 64), (65, 72, 72), (63, 136, 136), (129, 65, 40), (200, 201, 192)]
# Around tiles of 64 x 256 and steps of 64, with fewer and more steps than the ring has stages.
WARPGROUP_SHAPES = [(1, 1, 8), (17, 15, 47), (64, 256, 64), (65, 255, 328), (63, 258, 136), (130, 264, 520)]

# Small tilings, so that small shapes have edges and several blocks, and rings turn over.
SMALL_TILES = [(8, 8, 2), (16, 4, 4)]
SMALL_TENSOR_CORE_TILINGS = [
    TensorCoreTiling(16, 16, 16, 1, 1, 2),
    TensorCoreTiling(32, 32, 32, 1, 2, 3),
    TensorCoreTiling(16, 32, 64, 1, 2, 4),
]
SMALL_WGMMA_TILINGS = [WgmmaTiling(1, 64, 2), WgmmaTiling(1, 128, 3, 2, 2, 1), WgmmaTiling(2, 64, 2, 2)]
SMALL_WGMMA_TILINGS.append(WgmmaTiling(1, 96, 2, 2, 1, early=True))
SMALL_GEMV_TILINGS = [GemvTiling(1, 1, 1), GemvTiling(2, 2, 2), GemvTiling(3, 1, 1), GemvTiling(1, 4, 1, 2), GemvTiling(2, 4, 2, 4)]
# One warp and several, K divided among warps or blocks, and rings that turn over.
SMALL_FLAT_TILINGS = [FlatTiling(16, 1, 1, 2), FlatTiling(32, 4, 4, 3), FlatWgmmaTiling(1, 2, 1), FlatWgmmaTiling(2, 3, 2)]
FLAT_SHAPES = [(1, 17, 8), (8, 3, 328), (9, 65, 72)]
# More parts of K than tiles, and blocks that share tiles of x, the last cluster with more blocks than rows of weight.
FLAT_CASES = [((5, 9, 255), 0), ((33, 65, 136), FlatTiling(64, 4, 2, 9)), ((3, 33, 200), FlatWgmmaTiling(1, 3, 8))]
# Outputs that are stored eight at a time.
FLAT_CASES += [((9, 72, 72), FlatTiling(32, 4, 4, 3)), ((17, 136, 200), FlatWgmmaTiling(2, 2, 2)), ((5, 72, 64), FlatWgmmaTiling(1, 2))]
FLAT_CASES += [((17, 130, 200), FlatWgmmaTiling(1, 2, 2, 2)), ((60, 65, 264), FlatWgmmaTiling(1, 3, 1, 4))]


@dataclass(frozen=True)
class Case:
    """A product of one variant; `options` are the launcher's own (a tiling)."""

    variant: str
    m: int
    n: int
    k: int
    dtype: np.dtype
    out_dtype: np.dtype
    bias: bool
    options: tuple = ()

    def __str__(self):
        tiling = "".join(f"-{'x'.join(map(str, value)) if isinstance(value, tuple) else value}" for _, value in self.options)
        out = f"->{self.out_dtype}" if self.out_dtype != self.dtype else ""
        return f"{self.variant}-{self.m}x{self.n}x{self.k}-{self.dtype}{out}{'-bias' if self.bias else ''}{tiling}"


def spread(variant, shapes, dtypes, options=((),)):
    """One case a shape and option, taking dtypes, out dtypes and biases in turn: everything meets everything without a full product."""
    cases = []
    for shape in shapes:
        for option in options:
            i = len(cases)
            dtype = dtypes[i % len(dtypes)]
            out_dtype = FLOAT32 if i // len(dtypes) % 2 else dtype
            cases.append(Case(variant, *shape, dtype, out_dtype, i % 5 < 3, option))
    return cases


def with_tilings(name, tilings):
    """`tilings` as options of a launcher's argument `name`."""
    return [((name, tiling),) for tiling in tilings]


DTYPES = (FLOAT32, BFLOAT16, FLOAT16)
CASES = [
    *spread("naive", SHAPES, DTYPES),
    *spread("warp_per_row", FEW_ROWS, DTYPES),
    *spread("tiled", SHAPES, DTYPES, with_tilings("tile", SMALL_TILES)),
    *spread("vectorized", [(17, 15, 47), *VECTORIZED_SHAPES], DTYPES, [(("tile", 16),)]),
    *spread("vectorized", [(33, 47, 24)], DTYPES, [(("tile", 32),)]),
    *spread("wgmma", WGMMA_SHAPES, (BFLOAT16, FLOAT16), with_tilings("tiling", SMALL_WGMMA_TILINGS)),
    *spread("warpgroup", WARPGROUP_SHAPES, (BFLOAT16, FLOAT16)),
    *spread("warp_specialized", WARPGROUP_SHAPES, (BFLOAT16, FLOAT16)),
    *spread("tensor_core", SHAPES, (BFLOAT16, FLOAT16), with_tilings("tiling", SMALL_TENSOR_CORE_TILINGS)),
    *spread("flat", FLAT_SHAPES, (BFLOAT16, FLOAT16), with_tilings("tiling", SMALL_FLAT_TILINGS)),
    *(Case("flat", *shape, BFLOAT16, BFLOAT16, True, (("tiling", tiling),) if tiling else ()) for shape, tiling in FLAT_CASES),
    *spread("fixed_order", [*FLAT_SHAPES, (5, 9, 255)], (BFLOAT16, FLOAT16)),
    Case("fixed_order", 3, 9, 20, FLOAT32, FLOAT32, True),
    *spread("gemv", FEW_ROWS, DTYPES, with_tilings("tiling", SMALL_GEMV_TILINGS)),
]


def inputs(case, seed=0):
    """x, weight and bias (or None) of a case: normal numbers."""
    bias = random(case.n, case.out_dtype, seed + 2) if case.bias else None
    return random((case.m, case.k), case.dtype, seed), random((case.n, case.k), case.dtype, seed + 1), bias


def exact_inputs(case, seed=0):
    """Small integers, three quarters of them zeros: every sum is exact in float32, and every result in every dtype."""
    generator = np.random.default_rng(seed)

    def integers(*shape):
        return (generator.integers(-2, 3, shape) * (generator.random(shape) < 0.25)).astype(np.float64)

    x, weight, bias = integers(case.m, case.k), integers(case.n, case.k), integers(case.n)
    assert np.abs(x @ weight.T).max(initial=0) <= 254, "the results are not exact in bfloat16"
    return x.astype(case.dtype), weight.astype(case.dtype), bias.astype(case.out_dtype) if case.bias else None


def product(case, x, weight, bias, device):
    """The variant's result, written between guard bands into an output of NaN."""
    out = poisoned(device, (case.m, case.n), case.out_dtype)
    arrays = [device.array(array) for array in (x, weight)]
    VARIANTS[case.variant](*arrays, out.array, None if bias is None else device.array(bias), **dict(case.options))
    return np.asarray(out.result())


def float64_oracle(x, weight, bias):
    """(the product in float64, the same of absolute values)."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    offset = np.zeros(weight.shape[0]) if bias is None else bias.astype(np.float64)
    return x @ weight.T + offset, np.abs(x) @ np.abs(weight).T + np.abs(offset)


def check_product(case, device):
    """Random inputs: the result is within the bound above of the float64 product."""
    x, weight, bias = inputs(case)
    actual = product(case, x, weight, bias, device).astype(np.float64)
    oracle, magnitude = float64_oracle(x, weight, bias)
    bound = 2 * HALF_STEP[case.out_dtype] * np.abs(oracle) + SMALLEST_STEP[case.out_dtype] + (case.k + 1) * UNIT[case.variant] * magnitude
    wrong = ~(np.abs(actual - oracle) <= bound)  # a NaN is wrong
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} wrong, first at {tuple(np.argwhere(wrong)[0])}: {actual[wrong][0]} for {oracle[wrong][0]}"
    )


def check_exact_product(case, device):
    """Inputs whose product is exact: equality."""
    x, weight, bias = exact_inputs(case)
    np.testing.assert_array_equal(product(case, x, weight, bias, device).astype(np.float64), float64_oracle(x, weight, bias)[0])
