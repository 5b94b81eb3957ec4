"""SiLU and multiply, the gate of SwiGLU (Shazeer 2020, "GLU Variants Improve Transformer", equation 6)."""

import numpy as np


def silu_and_multiply_reference(gate_up):
    """silu(gate) * up, where silu(g) = g / (1 + exp(-g)).

    gate_up: [T, 2 * intermediate], the gate in its first half. Result: [T, intermediate] in the same dtype, computed in float32.
    """
    wide = np.result_type(gate_up.dtype, np.float32)
    intermediate = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :intermediate].astype(wide, copy=False), gate_up[..., intermediate:].astype(wide, copy=False)
    with np.errstate(over="ignore"):  # exp(-g) of a very negative gate is inf, and g / inf is the right 0
        return (gate / (1 + np.exp(-gate)) * up).astype(gate_up.dtype, copy=False)
