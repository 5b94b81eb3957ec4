"""What programs for numba.cuda ask of the host's side, with every launch simulated."""

import ctypes
import math

import numpy as np
import pytest
from numba import cuda, float32, int32
from numba.cuda.cudadrv import devicearray
from numba.cuda.kernels.transpose import transpose

from minllm.errors import SimulationError
from minllm.sim import output, simulate
from minllm.sim.numba_launches import simulated_launches
from tests.sim.test_array_forms import Tensor, twice


def test_eager_signatures_convert_their_arguments():
    with simulated_launches():

        @cuda.jit(["void(float32[:], float32)", "void(float64[:], float64)"])
        def add(x, number):
            if cuda.threadIdx.x < x.size:
                x[cuda.threadIdx.x] += number

        x = np.zeros(2)
        add[1, 2](x, 1)
        assert x.tolist() == [1, 1]
        with pytest.raises(TypeError, match=r"No matching definition for argument type\(s\) array\(int32, 1d, C\)"):
            add[1, 2](np.zeros(2, np.int32), 1)
        add.forall(2)(x, 1)
        assert x.tolist() == [2, 2]
    assert not hasattr(type(add), "simulated_signatures")


def test_arrays_of_the_host_side():
    with simulated_launches():
        x = cuda.to_device(np.arange(3.0))
        other = cuda.device_array(3)
        other.copy_to_device(x)
        assert cuda.is_available() and cuda.current_context().device.compute_capability == (9, 0)
        total = cuda.reduce(lambda a, b: a + b)
        assert total(other.copy_to_host()) == 3


def test_output_elements_that_no_thread_has_written():
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size - 1:
            out[i] = x[i]

    match = r"no thread has written 1 of the 50 elements of the global array out; the first is element \[49\]"
    with pytest.raises(SimulationError, match=match):
        simulate(kernel, 2, 32, np.ones(50, np.float32), output(50, np.float32), detect=True)
    simulate(kernel, 2, 32, np.ones(51, np.float32), output(50, np.float32), detect=True)


def test_an_error_of_python_names_the_line():
    def kernel(x, out):
        out[0] = x.shape[0] + (1, 2)

    with pytest.raises(SimulationError, match=r"cannot execute this line.*test_numba_launches.py:\d+ in kernel, block"):
        simulate(kernel, 1, 1, np.ones(1), np.ones(1))

    def raising(out):
        if out[0] == float32(1):
            raise TypeError("not this one")

    with pytest.raises(TypeError, match="not this one"):
        simulate(raising, 1, 1, np.ones(1, np.float32))


def test_ufuncs_and_generalised_ufuncs():
    with simulated_launches():

        @cuda.vectorize(["float32(float32, float32)", "float64(float64, float64)"])
        def difference(a, b):
            return a - b * 0.5

        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        assert difference(x, np.float32(2)).tolist() == (x - 1).tolist()
        assert difference(x, x[1]).dtype == np.float32
        assert difference(cuda.to_device(x), cuda.to_device(x)).copy_to_host().tolist() == (x / 2).tolist()

        @cuda.guvectorize(["void(float64[:, :], float64[:], float64[:])"], "(m,n),(n)->(m)")
        def product(matrix, vector, out):
            for i in range(matrix.shape[0]):
                out[i] = 0
                for j in range(matrix.shape[1]):
                    out[i] += matrix[i, j] * vector[j]

        matrices = np.arange(12.0).reshape(2, 2, 3)
        assert product(matrices, np.ones((2, 3))).tolist() == matrices.sum(2).tolist()


def test_an_unwritten_element_of_a_device_array_is_reported_when_it_is_copied():
    @cuda.jit
    def fill(out, count):
        if cuda.grid(1) < count:
            out[cuda.grid(1)] = 1

    with simulated_launches():
        out = cuda.device_array((4, 8), np.float32)
        fill[1, 32](out.ravel(), 31)
        match = r"1 of the 32 elements of a device array.*first is element \[3, 7\].*test_numba_launches.py:\d+"
        with pytest.raises(SimulationError, match=match):
            out.copy_to_host()
        assert out.copy_to_host()[0, 0] == 1  # allow-unwritten: the last element is padding
        fill[1, 32](out.ravel(), 32)
        assert out.copy_to_host().all()


RECORD = np.dtype([("mass", np.int16), ("place", np.float64, 2)], align=True)  # six bytes of padding


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool", "complex64", "m8[s]", RECORD], ids=str)
@pytest.mark.parametrize("order", "CF")
def test_unwritten_elements_of_device_arrays_of_any_type(dtype, order):
    @cuda.jit
    def fill(x, out, count):
        i = cuda.grid(1)
        if i < count:
            out[i // out.shape[1], i % out.shape[1]] = x[0]

    x = np.ones(1, RECORD) if dtype is RECORD else np.array([-1]).astype(dtype)  # all bits set in integers
    with simulated_launches():
        out = cuda.device_array((3, 5), dtype, order=order)
        fill[1, 32](x, out, 14)
        with pytest.raises(SimulationError, match=r"1 of the 15 elements.*first is element \[2, 4\]"):
            out.copy_to_host()
        assert out[:2].copy_to_host().shape == (2, 5)
        fill[1, 32](x, out[2:], 5)  # a view of the same memory
        assert (out.copy_to_host() == x[0]).all()


def test_an_unwritten_integer_is_reported_when_a_later_kernel_reads_it():
    @cuda.jit
    def copy(x, out):
        out[cuda.grid(1)] = x[cuda.grid(1)]

    with simulated_launches():
        x, out = cuda.device_array(33, np.int32), cuda.device_array(33, np.int32)
        copy[1, 32](cuda.to_device(np.full(33, -1, np.int32)), x)
        copy[1, 32](x, out)  # -1 was written
        with pytest.raises(SimulationError, match=r"memory that nobody wrote: the global array x, element \[32\]"):
            copy[1, 33](x, out)
        x[32] = -1
        copy[1, 33](x, out)
        assert (out.copy_to_host() == -1).all()


def test_fields_that_no_thread_has_written():
    @cuda.jit
    def weigh(out):
        out[cuda.grid(1)].mass = 1

    with simulated_launches():
        out = cuda.device_array(4, RECORD)
        weigh[1, 4](out)
        with pytest.raises(SimulationError, match=r"4 of the 4 elements"):
            out.copy_to_host()
        out["place"] = 3
        assert out.copy_to_host()["mass"].tolist() == [1] * 4


def test_memory_that_the_host_fills_counts_as_written():
    with simulated_launches():
        whole, half, exported, copied = (cuda.device_array(6, np.int16) for _ in range(4))
        whole.copy_to_device(np.full(6, -1, np.int16))
        half[::2] = -1
        ctypes.memset(exported.__cuda_array_interface__["data"][0], 0xFF, 12)
        copied[:] = -1
        assert all((one.copy_to_host() == -1).all() for one in (whole, exported, copied, half[::2]))
        with pytest.raises(SimulationError, match=r"3 of the 6 elements.*first is element \[1\]"):
            half.copy_to_host()


def test_views_of_one_device_array_may_overlap():
    @cuda.jit
    def shift(low, high):
        low[0] = 7
        high[1] = low[0] + high[0] * 0

    with simulated_launches():
        x = cuda.device_array(3, np.int32)
        x[1] = 0
        shift[1, 1](x[:2], x[1:])
        assert x.copy_to_host().tolist() == [7, 0, 7]


def test_the_code_of_a_simulated_kernel_is_compiled_when_somebody_looks():
    @cuda.jit(device=True)
    def root(value):
        return math.sqrt(value)

    @cuda.jit
    def roots(x):
        x[cuda.threadIdx.x] = root(x[cuda.threadIdx.x])

    with simulated_launches():
        roots[1, 4](np.ones(4, np.float32))
        roots[1, 4](np.ones(4))
        assert len(roots.signatures) == 2
        for signature, code in roots.inspect_asm().items():
            assert f"sqrt.rn.f{signature[0].dtype.bitwidth}" in code and ".target sm_90" in code
        with pytest.raises(RuntimeError, match="Cannot compile a device function as a kernel"):
            root[1, 1](1)
    assert not roots.overloads  # a launch on a GPU finds none of them


def test_a_function_in_another_language_needs_an_emulation():
    double = cuda.declare_device("double_of", "float64(float64)")

    @cuda.jit
    def use(x):
        x[0] = double(x[0])

    with simulated_launches():
        x = np.ones(1)
        with pytest.raises(SimulationError, match="double_of has no emulation: .* `emulation`, a Python function"):
            use[1, 1](x)
        double.emulation = lambda value: 2 * value
        use[1, 1](x)
        assert x[0] == 2


def test_device_arrays_that_a_kernel_refers_to_and_foreign_arrays():
    class Foreign:
        def __init__(self, array):
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    with simulated_launches():
        table = cuda.to_device(np.arange(6, dtype=np.float32).reshape(2, 3))

        @cuda.jit
        def scale(x, out):
            i = cuda.grid(1)
            out[i] = x[i, 0] * table[i, 1]

        x, out = np.array([[2, 0], [3, 0]], np.float32), cuda.device_array(2, np.float32)
        scale[1, 2](Foreign(cuda.to_device(x)[:, :1]), out)
        assert out.copy_to_host().tolist() == [2, 12]
        table[0, 1] = 5
        scale[1, 2](cuda.In(x), cuda.Out(out))
        assert out.copy_to_host().tolist() == [10, 12]


def of_a_zero_divisor(x, out):
    out[0] = 1 // (x.shape[0] - 2)


def of_a_variable_without_value(x, out):
    if x[0] > 3:
        value = x[0]
    out[0] = value


def of_an_unknown_name(x, out):
    out[0] = some_name  # noqa: F821


def of_a_string(x, out):
    if x[0] < "word":
        out[0] = 1


def of_a_slice(x, out):
    out[0] = x[0:2]


def of_a_shift(x, out):
    out[0] = 1 << (x.shape[0] - 3)


def of_a_shape(x, out):
    out[0] = x.reshape(3)[0]


def of_too_few_axes(x, out):
    rows, columns = x.shape
    out[0] = rows


def of_a_call(x, out):
    out[0] = x(1)


def of_a_field(x, out):
    out[0] = x[0].mass


def endless(n):
    return endless_device(n + 1)


endless_device = cuda.jit(device=True)(endless)


def of_a_recursion(x, out):
    out[0] = endless_device(0)


@pytest.mark.parametrize(
    "kernel, match",
    [
        (of_a_zero_divisor, "an integer is divided by 0"),
        (of_a_variable_without_value, "the variable 'value' is read here and has not been assigned"),
        (of_an_unknown_name, "the name 'some_name' is not defined"),
        (of_a_string, "less of float64 and a string is not defined"),
        (of_a_slice, r"an array of shape \(2,\) cannot be stored in an element of the global array out of float64"),
        (of_a_shift, "a shift by -1 bits, beyond the width of the integer"),
        (of_a_shape, "cannot reshape array of size 2"),
        (of_too_few_axes, "not enough values to unpack"),
        (of_a_call, "array is not callable"),
        (of_a_field, "'numpy.float64' object has no attribute 'mass'"),
        (of_a_recursion, "device functions call each other too deeply"),
    ],
)
def test_no_raw_error_of_python_reaches_the_reader(kernel, match):
    with pytest.raises(SimulationError, match=rf"{match}.*test_numba_launches.py:\d+ in \w+, block \(0, 0, 0\), thread \(0, 0, 0\)"):
        simulate(kernel, 1, 1, np.ones(2), np.ones(1))


def test_wrong_arguments_are_named():
    def kernel(x, out):
        out[0] = x[0]

    for arguments, match in (
        ([np.ones(1)], r"kernel\(x, out\) is launched with 1 arguments: missing a required argument: 'out'"),
        ([1, 2, 3], "too many positional arguments"),
        ([[1, 2], np.ones(1)], "argument x of kernel is a list, which no kernel takes"),
        ([np.ones(1), np.array([None])], "argument out of kernel is an array of Python objects"),
    ):
        with pytest.raises(SimulationError, match=match):
            simulate(kernel, 1, 1, *arguments)


def test_results_that_python_refuses_to_compute(recwarn):
    def kernel(x, out):
        out[0] = math.gamma(x[0])
        out[1] = math.lgamma(x[0])
        out[2] = int(x[1])
        out[3] = int32(x[2])
        out[4] = x[2] * x[2]
        out[5] = 1 / (x[0] + 1)
        out[6] = math.ldexp(x[2], 4000)

    out = np.zeros(7)
    simulate(kernel, 1, 1, np.array([-1.0, np.nan, 1e300]), out)
    assert np.isnan(out[0]) and out[1:].tolist() == [np.inf, -(2.0**63), 2**31 - 1, np.inf, np.inf, np.inf]
    assert not recwarn.list


def test_classes_of_device_arrays_are_those_that_programs_ask_for():
    with simulated_launches():
        x = cuda.to_device(np.arange(12.0).reshape(3, 4))
        made = devicearray.DeviceNDArray((2, 3), (24, 8), np.float64)
        view = cuda.from_cuda_array_interface(x[1:].__cuda_array_interface__, owner=x)
        assert all(isinstance(one, cuda.cudadrv.devicearray.DeviceNDArray) for one in (x, made, view))
        assert made.shape == (2, 3) and made.strides == (24, 8)
        view[0, 0] = 7
        assert x.copy_to_host()[1, 0] == 7
        assert (transpose(x).copy_to_host() == x.copy_to_host().T).all()


def test_launches_take_tensors_on_the_host():
    x, out = np.arange(37, dtype=np.float32), np.zeros(37, np.float32)
    with simulated_launches():
        twice[2, 32](Tensor(x), Tensor(out))
    np.testing.assert_array_equal(out, 2 * x)


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_what_a_kernel_raises_or_asserts_comes_with_its_thread(engine):
    @cuda.jit
    def refuse(x):
        if x[cuda.grid(1)] > 6: raise ValueError("more than 6")  # fmt: skip # noqa: E701

    @cuda.jit
    def check(x):
        assert x[cuda.grid(1)] < 7, "more than 6"

    for kernel, kind in ((refuse, ValueError), (check, AssertionError)):
        with pytest.raises(kind, match="^more than 6\n") as raised:
            simulate(kernel, 1, 8, np.arange(8.0), engine=engine)
        assert f"in {kernel.__name__}, block (0, 0, 0), thread (7, 0, 0)" in raised.value.__notes__[0]
