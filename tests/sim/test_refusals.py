"""Kernels that Python runs and numba-cuda does not compile are refused, with the line; what it compiles runs."""

import math

import numpy as np
import pytest
from numba import cuda

from minllm.errors import SimulationError
from minllm.sim import simulate

MIXED = (1.5, 2, 3)
PACKED = np.dtype([("a", np.int8), ("x", np.float32)])


def assigned_list(x):
    a = [1, 2]
    x[0] = a[0]


def comprehension(x):
    x[0] = [i for i in range(3)][1]


def handled(x):
    try:
        x[0] = 1
    except ValueError:
        x[0] = 2


def returned(x):
    if x[0] > 0:
        return 1
    x[0] = 1


def deleted(x):
    y = x[0]
    del y


def of_numpy(x):
    x[0] = np.sqrt(x[0])


def of_math(x):
    x[0] = math.cbrt(x[0])


def of_python(x):
    x[0] = any((x[0], x[1]))


def of_a_range(x):
    for i in reversed(range(3)):
        x[i] = i


def allocated(x):
    y = np.zeros(3)
    x[0] = y[0]


def mixed(x):
    x[0] = max(x[0], True)


def smallest(x):
    x[0] = min(x)


def shuffled(x):
    x[0] = cuda.shfl_sync(0xFFFFFFFF, np.uint32(3), 1)


def float_vote(x):
    x[0] = cuda.ballot_sync(0xFFFFFFFF, x[0])


def boolean_count(x):
    x[0] = cuda.syncthreads_count(x[0] > 1)


def exchanged(x):
    cuda.atomic.exch(x, 0, x[1])


def first_set(x):
    x[0] = cuda.ffs(np.int8(4))


def mixed_loop(x):
    for number in (1, x[1]):
        x[0] += number


def mixed_pairs(x):
    for n, number in zip((1, 2), enumerate(MIXED)):
        x[0] += n * number[1]


def mixed_widths(x):
    for number in (1, cuda.threadIdx.x):
        x[0] += number


def mixed_index(x):
    x[0] = MIXED[cuda.threadIdx.x % 3]


def mixed_index_in_a_loop(x):
    for j in range(3):
        x[0] += MIXED[j]


def float_bits(x):
    if x[0] < 0:  # no thread comes here, and the compiler reads it all the same
        x[0] = x[0] | 1


def shifted_float(x):
    x[0] <<= 1


def inverted_float(x):
    x[0] = ~x[0]


def bits_of_two_signs(x):
    number = np.uint64(7)
    if x[0] > 1:
        number = np.int64(1)
    x[0] = number & 3  # Numba's type of both is float64


REFUSED = {
    assigned_list: r"numba-cuda does not compile a list in a kernel: take a tuple, .*test_refusals.py:\d+ in assigned_list\)",
    comprehension: "does not compile a list",
    handled: "does not compile try in a kernel: test for the condition before",
    returned: "a kernel returns a number, .* store it in an array",
    deleted: "does not compile del",
    of_numpy: "numba-cuda has no np.sqrt for float64: convert",
    of_math: "numba-cuda has no math.cbrt",
    of_python: "numba-cuda does not know any",
    of_a_range: "numba-cuda does not know reversed",
    allocated: "numba-cuda allocates no array in a kernel, as np.zeros does: take cuda.local.array",
    mixed: "numba-cuda has no max for float64, bool",
    smallest: r"numba-cuda has no min for array\(float64, 1d, C\)",
    shuffled: "numba-cuda has no shfl_sync for int64, uint32, int64",
    float_vote: "numba-cuda has no ballot_sync for int64, float64",
    boolean_count: "numba-cuda has no syncthreads_count for bool",
    exchanged: r"numba-cuda has no atomic.exch for array\(float64, 1d, C\), int64, float64",
    first_set: "numba-cuda has no ffs for int8",
    mixed_loop: r"neither loops over a tuple of int64 and float64, .*test_refusals.py:\d+ in mixed_loop\)",
    mixed_pairs: "neither loops over a tuple of float64 and int64",
    mixed_widths: "neither loops over a tuple of int64 and int32",
    mixed_index: "nor takes an index into it that is known only at run time",
    mixed_index_in_a_loop: "nor takes an index into it that is known only at run time",
    float_bits: r"does not compile x\[0\] \| 1 for float64 and int64: convert floats to integers first",
    shifted_float: "does not compile x.0. <<= 1 for float64 and int64",
    inverted_float: "does not compile ~x.0. for float64",
    bits_of_two_signs: "does not compile number & 3 for float64 and int64",
}


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda kernel: kernel.__name__)
def test_what_the_compiler_refuses_is_refused(kernel):
    with pytest.raises(SimulationError, match=REFUSED[kernel]):
        simulate(kernel, 1, 32, np.ones(32))


def test_mixed_tuples_with_known_indices():
    def kernel(x, out):
        last = 1
        pair = (x[0], cuda.threadIdx.x)
        out[0] = MIXED[0] + MIXED[-1] + pair[last] + len(pair)
        for n in (1, x.size):
            out[0] += n

    out = np.zeros(1)
    simulate(kernel, 1, 1, np.ones(1), out)
    assert out[0] == 8.5


def test_fields_of_packed_records():
    def unaligned(r, out):
        out[0] = r[0].x

    def by_name(r, out):
        out[0] = r[0]["x"]

    def aligned(r, out):
        out[0] = r[0].a

    records, out = np.ones(2, PACKED), np.zeros(1)
    for kernel in (unaligned, by_name):
        with pytest.raises(SimulationError, match="the field 'x' of a packed record is not aligned, .* align=True"):
            simulate(kernel, 1, 1, records, out)
    simulate(aligned, 1, 1, records, out)
    assert out[0] == 1


def test_arguments_by_name_and_literals_of_device_functions_are_taken():
    @cuda.jit(device=True)
    def position(axes):
        return cuda.grid(axes)

    def kernel(x):
        x[position(1)] = cuda.shfl_sync(mask=0xFFFFFFFF, value=cuda.threadIdx.x, src_lane=2)

    x = np.zeros(32)
    simulate(kernel, 1, 32, x)
    assert (x == 2).all()


def test_what_the_compiler_takes_runs():
    def kernel(x):
        for i in [0, 1, 2]:
            x[i] += i
        x[3] = np.minimum(np.sin(x[0]), x[1]) + cuda.cbrt(x[4])
        return None

    x = np.array([0.0, 0, 0, 0, 8])
    simulate(kernel, 1, 1, x)
    assert x[:4].tolist() == [0, 1, 2, 2]
