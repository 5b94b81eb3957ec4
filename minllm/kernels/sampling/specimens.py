"""The sampling kernels as they are launched. Logits are always float32."""

from minllm.kernels.sampling import argmax, log_probabilities, penalties, radix_select
from minllm.kernels.sampling.sample import draw_parts_kernel
from minllm.kernels.sampling.thresholds import thresholds_kernel
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array
from minllm.machine.numba_cuda import types
from minllm.tiles.warp import WARP

SHARES = "the share p of an int64 sum of weights is formed in float64, once a level and thread"


def specimens():
    """All sampling kernels. The memory-bound ones should have 6 blocks of 256 threads per SM."""
    ints, floats, int_rows, float_rows = array(INT32, 1), array(FLOAT32, 1), array(INT32, 2), array(FLOAT32, 2)
    flags, seed = array(types.uint8, 2), array(types.uint32, 2)
    parts, wide = (float_rows, int_rows), ("LDG*128*",)
    arguments = (float_rows, ints, ints, flags, int_rows, float_rows, floats, floats, floats, ints, ints, float_rows)
    yield Specimen("sampling/penalize", penalties.penalize_kernel, arguments, penalties.THREADS, blocks=6)
    arguments = (float_rows, INT32, *parts)
    yield Specimen("sampling/argmax_parts", argmax.argmax_parts_kernel, arguments, argmax.THREADS, blocks=5, contains=wide)
    yield Specimen("sampling/argmax_of_parts", argmax.argmax_of_parts_kernel, (*parts, ints, ints), WARP, blocks=16)
    arguments = (float_rows, ints, floats, ints, floats, floats, floats)
    yield Specimen("sampling/thresholds", thresholds_kernel, arguments, radix_select.THREADS, blocks=1, contains=wide, float64=SHARES)
    arguments = (float_rows, ints, floats, floats, seed, ints, *parts)
    yield Specimen("sampling/draw_parts", draw_parts_kernel, arguments, argmax.THREADS, blocks=5, contains=wide)
    given, best = (float_rows, ints, INT32, float_rows, float_rows, int_rows), (array(FLOAT32, 3), array(INT32, 3))
    kernel, threads = log_probabilities.log_probability_parts_kernel, log_probabilities.THREADS
    yield Specimen("sampling/log_probability_parts", kernel, (*given, *best), threads, blocks=4, contains=wide)
    arguments = (*given, *parts, floats, ints, int_rows, float_rows)
    yield Specimen("sampling/log_probabilities_of_parts", log_probabilities.log_probabilities_of_parts_kernel, arguments, threads, blocks=4)
