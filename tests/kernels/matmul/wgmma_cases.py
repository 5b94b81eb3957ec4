"""Cases of wgmma's fused epilogues, for the simulator and the GPU: shapes, tilings, and how far a result may be off."""

import numpy as np

from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling
from minllm.kernels.matmul.wgmma.wgmma import matmul_silu_and_multiply, matmul_wgmma
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, HALF_STEP, SMALLEST_STEP, assert_close, poisoned, random
from tests.kernels.matmul.cases import UNIT, float64_oracle

SMALL_GATED_TILINGS = [WgmmaTiling(1, 128, 2), WgmmaTiling(1, 128, 3, 2, 1, 1), WgmmaTiling(1, 256, 2, 1, 2)]
# m, intermediate, k, dtype, tiling
GATED = [
    (1, 1, 8, BFLOAT16, SMALL_GATED_TILINGS[0]),
    (65, 72, 72, FLOAT16, SMALL_GATED_TILINGS[0]),
    (63, 136, 64, BFLOAT16, SMALL_GATED_TILINGS[1]),
    (129, 65, 40, BFLOAT16, SMALL_GATED_TILINGS[1]),
    (64, 200, 136, BFLOAT16, SMALL_GATED_TILINGS[2]),
]
# m, n, k, dtype, out_dtype, tiling
RESIDUALS = [
    (65, 72, 72, BFLOAT16, BFLOAT16, WgmmaTiling(1, 64, 2)),
    (33, 65, 40, FLOAT16, FLOAT16, WgmmaTiling(1, 128, 2)),
    (130, 136, 64, BFLOAT16, FLOAT32, WgmmaTiling(2, 64, 2, 2)),
    # Few rows: consumers get equal parts of them, 33 and 20 here.
    (130, 136, 200, BFLOAT16, BFLOAT16, WgmmaTiling(2, 64, 2, 2, early=True)),
    (77, 65, 40, FLOAT16, FLOAT32, WgmmaTiling(2, 96, 3, 2, early=True)),
]


def check_gated(m, intermediate, k, dtype, tiling, device):
    """silu(gate) * up is within one rounding, and the error of the sums, of the float64 result."""
    x, gate_up = random((m, k), dtype, 0, 0.5), random((2 * intermediate, k), dtype, 1, 0.5)
    out = poisoned(device, (m, intermediate), dtype)
    matmul_silu_and_multiply(device.array(x), device.array(gate_up), out.array, tiling=tiling)
    both, _ = float64_oracle(x, gate_up, None)
    gate, up = both[:, :intermediate], both[:, intermediate:]
    assert_close(out.result(), gate / (1 + np.exp(-gate)) * up, dtype, slack=1e-5)


def check_residual(m, n, k, dtype, out_dtype, tiling, device):
    """x @ weight.T + bias + residual is within the bound of cases.check_product, one more rounding of a float32 sum included."""
    x, weight = random((m, k), dtype, 0), random((n, k), dtype, 1)
    bias, residual = random(n, out_dtype, 2), random((m, n), dtype, 3)
    out = poisoned(device, (m, n), out_dtype)
    on_device = [device.array(array) for array in (x, weight, bias, residual)]
    matmul_wgmma(*on_device[:2], out.array, on_device[2], tiling=tiling, residual=on_device[3])
    oracle, magnitude = float64_oracle(x, weight, bias)
    oracle, magnitude = oracle + residual.astype(np.float64), magnitude + np.abs(residual.astype(np.float64))
    error = np.abs(out.result().astype(np.float64) - oracle)
    bound = 2 * HALF_STEP[out_dtype] * np.abs(oracle) + SMALLEST_STEP[out_dtype] + (k + 2) * UNIT["wgmma"] * magnitude
    assert (error <= bound).all()
