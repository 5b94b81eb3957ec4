"""How a matrix is dealt to the threads of an encoder: eight neighbouring inputs per lane.

A group of 32, 64 or 128 inputs has 4, 8 or 16 neighbouring lanes of one warp, so that its extremes take two to four shuffles. A lane loads
16 or 32 bytes and stores one 32-bit word of codes.
"""

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.quantization.lanes import EACH
from minllm.kernels.vector import vectors_per_row
from minllm.runtime.kernel import check

THREADS = 128


def grid_of(matrix, group):
    """(blocks of a launch with THREADS threads) for a matrix [outputs, inputs], a lane per EACH inputs. Outputs lie along x, as all
    experts' together pass the 65,535 blocks of y.

    Raises KernelArgumentError for another dtype than float32, float16 and bfloat16, inputs that are not whole groups, and unaligned rows.
    """
    check_array("matrix", matrix, FLOAT_DTYPES, outputs=None, inputs=None)
    outputs, inputs = matrix.shape
    check(inputs % group == 0, f"{inputs} inputs are not whole groups of {group}")
    check(vectors_per_row(inputs, matrix) > 0, f"rows of {inputs} inputs are not aligned to 16 bytes")
    return outputs, ceil_div(inputs // EACH, THREADS)
