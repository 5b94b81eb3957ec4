"""The simulator's arithmetic has the types that Numba infers, and so the numbers of a GPU."""

import math

import numpy as np
import pytest
from numba import cuda, float32, int32, int64, types, uint32, uint64
from numba.cuda import libdevice
from numba.cuda.extending import overload

from minllm.errors import SimulationError
from minllm.machine import numba_cuda
from minllm.runtime.kernel import kernel
from minllm.sim import simulate
from minllm.sim.typing import functions

TENTH = 0.1
TABLE = np.array([1.0, 2.0], np.float32)
MULTIPLIER, INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)


def result_of(function, *arguments, dtype=np.float64, size=1):
    """What a kernel of one thread writes to its last argument, an array."""
    out = np.zeros(size, dtype)
    simulate(function, 1, 1, *arguments, out)
    return out if size > 1 else out[0]


def add(x, y, out):
    out[0] = x + y


def test_a_float_argument_is_float64_for_numba_and_float32_for_our_launcher():
    assert result_of(cuda.jit(add), 0.1, 0.2) == 0.1 + 0.2
    assert result_of(add, 0.1, 0.2) == 0.1 + 0.2
    assert result_of(kernel(add), 0.1, 0.2) == float(np.float32(0.1) + np.float32(0.2))
    assert result_of(kernel(add), np.float64(0.1), 0.0) == 0.1


def test_float32_with_a_literal_or_an_int_is_float64():
    def scaled(x, i, out):
        out[0] = x[0] * 0.1
        out[1] = x[0] * TENTH
        out[2] = x[0] * 3
        out[3] = x[0] + i[0]
        out[4] = x[0] / i[0]
        out[5] = x[0] * float32(3)

    x, i = np.array([0.1], np.float32), np.array([16777217], np.int32)
    wide = float(x[0])
    expected = [wide * 0.1, wide * 0.1, wide * 3, wide + 16777217, wide / 16777217, np.float32(x[0] * np.float32(3))]
    assert result_of(scaled, x, i, size=6).tolist() == expected


def test_int16_and_bool_with_float32_stay_float32():
    def scaled(x, i, out):
        out[0] = x[0] * i[0]
        out[1] = x[0] + (i[0] > 2)

    x, i = np.array([0.1], np.float32), np.array([3], np.int16)
    assert result_of(scaled, x, i, size=2).tolist() == [np.float32(0.1) * np.float32(3), np.float32(0.1) + np.float32(1)]


def test_a_comparison_with_an_int_is_made_in_float64():
    def compare(x, i, out):
        out[0] = x[0] == i[0]
        out[1] = x[0] < 0.1

    assert result_of(compare, np.array([16777216], np.float32), np.array([16777217], np.int32), size=2).tolist() == [0, 0]


def test_64_bit_integers_wrap():
    def generate(x, i, out):
        state = x[0]
        for _ in range(5):
            state = state * MULTIPLIER + INCREMENT
        out[0] = state
        out[1] = state * MULTIPLIER + INCREMENT >> 33
        out[2] = uint64(1) - uint64(2) > 5
        out[3] = (i[0] * 3) // 7

    state = 7
    for _ in range(5):
        state = (state * int(MULTIPLIER) + int(INCREMENT)) % 2**64
    draw = (state * int(MULTIPLIER) + int(INCREMENT)) % 2**64 >> 33
    quotient = (3 * 2**62 - 2**64) // 7
    found = result_of(generate, np.array([7], np.uint64), np.array([2**62], np.int64), dtype=np.uint64, size=4)
    assert found.tolist() == [state, draw, 1, quotient % 2**64]


def test_bit_counts_have_the_width_of_their_argument():
    def count(out):
        out[0], out[1] = cuda.popc(int32(-1)), cuda.popc(int64(-1))
        wide = uint64(1) << uint64(40)
        out[2], out[3], out[4] = cuda.clz(wide), cuda.ffs(wide), cuda.brev(wide)
        out[5], out[6], out[7] = cuda.clz(uint32(1)), cuda.ffs(int32(8)), cuda.brev(uint32(1))

    assert result_of(count, dtype=np.uint64, size=8).tolist() == [32, 64, 23, 41, 1 << 23, 31, 4, 1 << 31]


def test_libdevice_and_math_functions_have_the_precision_that_numba_declares():
    def functions(x, out):
        out[0] = libdevice.sin(x[0])
        out[1] = libdevice.sinf(float32(x[0]))
        out[2] = math.sin(x[0])
        out[3] = math.exp(float32(x[0]))
        out[4] = math.pow(float32(x[0]), 2.0)
        out[5] = libdevice.rsqrt(x[0])
        out[6] = libdevice.erff(float32(x[0]))
        out[7] = float32(x[0]) * math.pi

    x, single = 0.7, np.float32(0.7)
    wide = float(single)
    expected = [math.sin(x), np.float32(math.sin(wide)), math.sin(x), np.float32(math.exp(wide)), wide**2, 1 / math.sqrt(x)]
    found = result_of(functions, np.array([x]), size=8)
    assert found.tolist() == [*expected, float(np.float32(math.erf(wide))), wide * math.pi]


def test_max_and_min_of_a_number_and_nan_are_the_number():
    def extrema(x, out):
        one = float32(1)
        out[0], out[1], out[2], out[3] = max(x[0], one), max(one, x[0]), min(x[0], one), max(x[0], x[0])
        out[4] = max(x[0], one, float32(3))

    found = result_of(extrema, np.array([np.nan], np.float32), size=5)
    assert found[[0, 1, 2, 4]].tolist() == [1, 1, 1, 3] and np.isnan(found[3])


@cuda.jit(device=True)
def nothing(x):
    x + 1


def test_the_missing_result_of_a_device_function_is_refused():
    def store(out):
        out[0] = nothing(3)

    with pytest.raises(SimulationError, match=r"returns nothing, is stored in an array \(.*test_numba_types.py:\d+ in store\)"):
        result_of(store)


def cube(x):
    """A function with another implementation on GPUs."""


@overload(cube, target="cuda")
def overload_cube(x):
    def implementation(x):
        return x * x * x

    return implementation


def overload_square(x):
    def implementation(x):
        return x * x

    return implementation


def test_an_overloaded_function_runs_its_implementation():
    def use(out):
        out[0] = cube(float32(3))

    assert result_of(use) == 27

    def square(x):
        """Gets its implementation after the simulator has run."""

    overload(square, target="cuda")(overload_square)

    def use_square(out):
        out[0] = square(float32(3))

    assert result_of(use_square) == 9


def test_a_global_array_is_frozen_when_the_kernel_is_first_launched():
    table = np.array([10.0, 20.0])

    def read(x, out):
        out[0] = TABLE[1] + table[1] + x

    try:
        assert result_of(read, 0.0) == 22
        TABLE[1] = table[1] = 5
        assert result_of(read, 1.0) == 23
        assert result_of(read, 1) == 11  # other types of arguments: Numba compiles again
    finally:
        TABLE[1] = 2


def test_a_variable_has_one_type_where_branches_and_iterations_meet():
    def unify(x, choose, out):
        value = x[0]
        if choose:
            value = 0.5
        out[0] = value * x[0]
        total = 0
        for _ in range(3):
            total += x[0]
        out[1] = total
        early = x[0]
        while True:
            if choose:
                break
            early = 0.25
            if early < x[0]:
                continue
            break
        out[2] = early * x[0]
        picked = x[0] if choose else 2.0
        out[3] = picked * x[0]

    x = np.array([0.1], np.float32)
    square = float(x[0]) * float(x[0])
    assert result_of(unify, x, 0, size=4).tolist() == [square, 3 * float(x[0]), 0.25 * float(x[0]), 2 * float(x[0])]
    assert result_of(unify, x, 1, size=4)[[2, 3]].tolist() == [square, square]


@cuda.jit(device=True)
def halved_or(x, choose):
    if choose:
        return x
    return x * 0.5


@cuda.jit(device=True)
def twice(x):
    return halved_or(x, 1) * halved_or(x, 1)


def test_device_functions_are_typed_for_each_types_of_arguments():
    def call(x, out):
        out[0] = twice(x[0])  # float64, since a return statement of halved_or has it
        out[1] = twice(x[1] * 2.0)
        out[2] = twice(3)

    x = np.array([0.1, 0.3], np.float32)
    wide = x.astype(np.float64)
    assert result_of(call, x, size=3).tolist() == [wide[0] ** 2, (wide[1] * 2) ** 2, 9]


def test_a_kernel_with_casts_keeps_its_line_numbers():
    @cuda.jit
    def reach(x, out):
        scaled = max(x[0], x[1]) * 0.5
        out[0] = scaled + x[2]

    line = reach.py_func.__code__.co_firstlineno + 3
    with pytest.raises(SimulationError, match=rf"out of bounds .* x of shape \(2,\) \(.*test_numba_types.py:{line} in reach"):
        result_of(reach, np.zeros(2, np.float32))


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_integers_that_kernels_divide_give_float64_and_infinity():
    def divide(i, out):
        out[0] = i[0] / i[1]
        out[1] = i[0] / 3 * float32(0.1)

    assert result_of(divide, np.array([1, 0]), size=2).tolist() == [math.inf, 1 / 3 * float(np.float32(0.1))]


def test_a_variable_of_one_branch_may_change_its_type_at_a_later_loop():
    """The loop's casts leave a variable alone that has no value, and cast it where it has one."""

    def rest_of(i, n):
        if i > n:
            rest = i * 3 - n
        steps = 0
        while steps < n:
            steps += 1
        return rest if i > n else int64(-steps)

    device = cuda.jit(device=True)(rest_of)

    def branches(n, out):
        i = cuda.threadIdx.x
        if i >= n:
            past = i - n
            scale = i << 62
        for _ in range(n):
            out[i] = 1
            if i >= n:
                out[i] += past
                past, scale = 0.5, scale + 1
        out[i] += device(i, n) * 100

    out = np.zeros(4)
    simulate(branches, 1, 4, 2, out)
    assert out.tolist() == [1 - 200, 1 - 200, 1.5 - 200, 1.5 + 700]


def test_reading_a_variable_that_a_loop_found_without_a_value_is_reported():
    def read(n, out):
        if n > 5:
            missing = n * n
        for i in range(n):
            out[i] = i
        out[0] = missing

    with pytest.raises(SimulationError, match="the variable 'missing' is read here and has not been assigned"):
        simulate(read, 1, 1, 3, np.zeros(4))


def scaled(x, y):
    """A function without a body of its own for kernels."""


@overload(scaled)
def scaled_overload(x, y):
    return (lambda x, y: x * y) if isinstance(y, types.Integer) else (lambda x, y: x + y)


def test_overloads_by_lambdas_have_numbas_types():
    def kernel(x, out):
        out[0] = scaled(x[0], 3)
        out[1] = scaled(x[0], x[0])

    tenth = np.float32(0.1)
    assert result_of(kernel, np.array([tenth]), size=2).tolist() == [float(tenth) * 3, tenth + tenth]


def test_builtins_get_integers_that_have_wrapped():
    def kernel(x, out):
        out[0] = abs(x[0] * x[0])
        out[1] = int(x[0] * x[0])
        out[2] = float(x[0] * x[0])
        out[3] = divmod(x[0] * x[0], 7)[1]

    square = (4 * 10**9) ** 2 - 2**64
    assert square < 0
    found = result_of(kernel, np.array([4 * 10**9]), size=4)
    assert found.tolist() == [float(-square), float(square), float(square), square % 7]


def test_functions_get_integers_that_have_wrapped():
    @cuda.jit("float64(int64, float64)", device=True)
    def half(x, y):
        return x / 2 + y

    def kernel(x, big, out):
        square = x[0] * x[0]
        out[0] = math.floor(square)
        out[1] = math.hypot(square, 0)
        out[2] = cuda.selp(True, square, x[0])
        out[3] = half(square, 0.0)
        out[4] = math.log(big[0] + 1)  # an int64: cvt.rn.f64.s64
        out[5] = cuda.shfl_sync(1, square, 0)

    square = (4 * 10**9) ** 2 - 2**64
    found = result_of(kernel, np.array([4 * 10**9]), np.array([2**63], np.uint64), size=6)
    assert found[[0, 1, 2, 3, 5]].tolist() == [float(square), float(-square), float(square), square / 2, float(square)]
    assert np.isnan(found[4])


def test_a_variable_of_a_loops_body_has_its_type_after_the_loop_and_in_the_next_iteration():
    def kernel(x, n, out):
        for _ in range(3):
            square = n * n
        out[0] = square
        i = 0
        while i < 3:
            if i > 0:
                before = last * 2  # noqa: F821  # of the iteration before
            last = x[i]  # noqa: F841
            half = i * 0.5
            i += 1
        out[1], out[2] = before, half
        while n > 0:
            product = n * n
            if product < 0:
                break
            n = -1
        out[3] = product

    x = np.full(3, 0.1, np.float32)
    found = result_of(kernel, x, np.int64(4 * 10**9), size=4)
    wrapped = float((4 * 10**9) ** 2 - 2**64)
    assert found.tolist() == [wrapped, float(x[0]) * 2, 1.0, wrapped]


@pytest.mark.parametrize("engine", ["threads", "lanes"])
def test_unsigned_differences_wrap_before_they_meet_a_float_in_a_loop(engine):
    def walk(a, choose, out):
        found = 0.5
        for i in range(2):
            if choose[0]:
                found = a[0] - a[1]
            else:
                found = 1.5
            out[i] = found

    out, a = np.zeros(2), np.array([3, 7], np.uint32)
    for choose, expected in ((True, float(2**64 - 4)), (False, 1.5)):
        simulate(walk, 1, 1, a, np.array([choose]), out, engine=engine)
        assert out.tolist() == [expected] * 2


def test_a_walk_over_a_kernel_that_was_interrupted_begins_anew(monkeypatch):
    """Otherwise the next launch would run the kernel as plain Python, without Numba's types."""

    def wraps(x, out):
        out[0] = x[0] + x[0]

    def interrupt(*_):
        raise KeyboardInterrupt

    x = np.array([2**63 - 1])
    with monkeypatch.context() as patch:
        patch.setattr(functions.Walk, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            result_of(wraps, x)
    assert result_of(wraps, x) == -2


def test_casts_and_classes_of_bfloat16_and_floats_of_text():
    bfloat16 = numba_cuda.types.bfloat16

    def kernel(out, nan):
        x = bfloat16(3.14)
        out[0], out[1] = uint64(x), int64(x)
        if isinstance(x, bfloat16):
            out[2] = uint64(bfloat16(1e30))
        nan[0] = float("nan")

    out, nan = np.zeros(3, np.uint64), np.zeros(1)
    simulate(kernel, 1, 1, out, nan)
    assert out.tolist() == [3, 3, 2**64 - 1] and np.isnan(nan[0])


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_abs_of_the_least_integer_is_that_integer_of_its_type(engine):
    def sums(small, large, out):
        i = cuda.grid(1)
        out[i, 0] = abs(small[i]) * 100
        out[i, 1] = int32(abs(small[i]))
        out[i, 2] = abs(large[i]) + 1

    small, large = np.full(8, -128, np.int8), np.full(8, -(2**31), np.int32)
    simulate(sums, 1, 8, small, large, out := np.zeros((8, 3), np.int64), engine=engine)
    assert (out == [-12800, -128, 1 - 2**31]).all()


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_isinstance_goes_by_the_type_of_numba(engine):
    def classes(small, large, out):
        i = cuda.grid(1)
        out[i, 0] = isinstance(small[i], float)
        out[i, 1] = isinstance(large[i], float)
        out[i, 2] = isinstance(int32(i), (int, tuple))
        out[i, 3] = isinstance(i, int)
        v = i
        if isinstance(i, float):
            v = 0.5  # Numba drops this branch
        out[i, 4] = isinstance(v, int)

    simulate(classes, 1, 8, np.zeros(8, np.float32), np.zeros(8), out := np.zeros((8, 5), bool), engine=engine)
    assert (out == [False, True, False, True, True]).all()


def test_a_kernel_with_an_assertion_has_types_in_a_test():
    def tripled(x, out):
        assert x[0] < 1, "pytest rewrites this line"
        v = x[0]
        for _ in range(3):
            v = v * 3
        out[0] = v

    x = np.full(1, 0.1, np.float32)
    assert result_of(tripled, x) == float(x[0]) * 27


def test_a_kernel_without_a_source_is_named():
    made = {}
    exec("def tripled(x, out):\n    out[0] = x[0] * 3\n", made)
    with pytest.warns(
        UserWarning, match=r"the source of tripled \(<string>:1\) is not available.*: the simulator computes with NumPy's types"
    ):
        result_of(made["tripled"], np.ones(1))
