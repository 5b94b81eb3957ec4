"""What a reader's own kernels use of numba.cuda, beyond what the package's kernels do."""

import math
import re

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, int32, uint8, uint32
from numba.cuda import libdevice, syncthreads, threadIdx
from numba.cuda.extending import intrinsic

from minllm.errors import SimulationError
from minllm.sim import simulate
from minllm.sim.engines import ENGINES

pytestmark = pytest.mark.filterwarnings("ignore:the source of")  # some kernels are made by exec

TABLE = np.array([3, 1, 4, 1, 5], np.int32)


@intrinsic
def without_emulation(typing_context, x):
    """Never compiled here."""


def test_barriers_that_count_and_vote():
    def kernel(out):
        i = cuda.threadIdx.x
        out[i, 0] = cuda.syncthreads_count(int32(i % 3 == 0))
        out[i, 1] = cuda.syncthreads_and(int32(i < 40))
        out[i, 2] = cuda.syncthreads_or(int32(i == 39))

    out = np.zeros((40, 3), np.int32)
    simulate(kernel, 1, 40, out)
    assert (out == [14, 1, 1]).all()


def test_match_eq_and_lane_masks():
    def kernel(out):
        lane = cuda.laneid
        mask, same = cuda.match_all_sync(0xFFFFFFFF, lane // 32)
        other_mask, other_same = cuda.match_all_sync(0xFFFFFFFF, lane)
        any_mask = cuda.match_any_sync(0xFFFFFFFF, lane % 2)
        out[lane, 0], out[lane, 1], out[lane, 2], out[lane, 3] = mask, same, other_mask, other_same
        out[lane, 4] = any_mask
        out[lane, 5] = cuda.lanemask_lt()
        out[lane, 6] = cuda.activemask()

    out = np.zeros((32, 7), np.uint32)
    simulate(kernel, 1, 32, out)
    lanes = np.arange(32)
    assert (out[:, :4] == [0xFFFFFFFF, 1, 0, 0]).all()
    assert (out[:, 4] == np.where(lanes % 2, 0xAAAAAAAA, 0x55555555)).all()
    assert (out[:, 5] == (1 << lanes) - 1).all() and (out[:, 6] == 0xFFFFFFFF).all()


def test_grids_of_every_dimension_and_strides():
    def kernel(out):
        x, y, z = cuda.grid(3)
        width, height, depth = cuda.gridsize(3)
        out[z, y, x] = x + width * (y + height * z)
        assert cuda.grid(2) == (x, y) and cuda.gridsize(1) == width and cuda.warpsize == 32 and depth == 3

    out = np.full((3, 4, 6), -1, np.int32)
    simulate(kernel, (3, 2, 1), (2, 2, 3), out)
    assert (out.reshape(-1) == np.arange(72)).all()


def test_vector_types():
    def kernel(x, out):
        pair = cuda.float32x2(x[0], x[1])
        four = cuda.float32x4(pair, 2, x[2])
        whole = cuda.uint8x3(255, 256, -1)
        out[0], out[1], out[2], out[3] = four.x, four.y, four.z, four.w
        out[4] = whole.x + whole.y + whole.z
        pair.x = 0.1
        out[5] = pair.x

    out = np.zeros(6, np.float32)
    simulate(kernel, 1, 1, np.array([1, 2, 3], np.float32), out)
    assert out.tolist() == [1, 2, 2, 3, 510, np.float32(0.1)]


def test_views_of_shared_memory_as_other_types_fp8_included():
    def kernel(x, out):
        memory = cuda.shared.array(8, uint8)
        memory[cuda.threadIdx.x] = x.view(np.uint8)[cuda.threadIdx.x]
        cuda.syncthreads()
        out[cuda.threadIdx.x] = float32(memory.view(ml_dtypes.float8_e4m3fn)[cuda.threadIdx.x])
        out[8] = memory.view(uint32)[1] >> 24

    x, out = np.array([1, -2, 0.5, 448, 0, 3, 1.5, -8]).astype(ml_dtypes.float8_e4m3fn), np.zeros(9, np.float32)
    simulate(kernel, 1, 8, x, out)
    assert out[:8].tolist() == x.astype(np.float32).tolist() and out[8] == x.view(np.uint8)[7]


def test_constant_arrays_are_read_only():
    def make(write):
        def kernel(out):
            table = cuda.const.array_like(TABLE)
            out[0] = table[4]
            if write:
                table[0] = 1

        return kernel

    out = np.zeros(1, np.int32)
    simulate(make(False), 1, 1, out)
    assert out[0] == 5
    with pytest.raises(SimulationError, match="constant array table"):
        simulate(make(True), 1, 1, out)
    assert TABLE[0] == 3


@pytest.mark.parametrize(
    "name, start, value, expected",
    [
        ("add", 5, 3, 8), ("sub", 5, 3, 2), ("max", 5, 9, 9), ("min", 5, 9, 5), ("exch", 5, 7, 7), ("and_", 6, 3, 2), ("or_", 6, 3, 7),
        ("xor", 6, 3, 5), ("inc", 5, 5, 0), ("inc", 4, 5, 5), ("dec", 0, 5, 5), ("dec", 3, 5, 2), ("nanmax", 2, 4, 4), ("nanmin", 2, 4, 2),
    ],
)  # fmt: skip
def test_atomics_return_the_old_value(name, start, value, expected):
    def kernel(x, out):
        out[0] = getattr(cuda.atomic, name)(x, 0, value)

    x, out = np.array([start], np.uint32), np.zeros(1, np.uint32)
    simulate(kernel, 1, 1, x, out)
    assert x[0] == expected and out[0] == start


def test_compare_and_swap():
    def kernel(x, out):
        out[0] = cuda.atomic.compare_and_swap(x, 4, 9)
        out[1] = cuda.atomic.cas(x, 1, 4, 8)

    x, out = np.array([4, 5], np.int32), np.zeros(2, np.int32)
    simulate(kernel, 1, 1, x, out)
    assert x.tolist() == [9, 5] and out.tolist() == [4, 5]


def test_names_imported_by_themselves_and_cache_hints():
    def kernel(x, out):
        tile = cuda.shared.array(4, float32)
        tile[threadIdx.x] = cuda.ldcg(x, threadIdx.x)
        syncthreads()
        cuda.stcs(out, threadIdx.x, libdevice.fast_expf(tile[3 - threadIdx.x]))

    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    simulate(kernel, 1, 4, x, out)
    np.testing.assert_allclose(out, np.exp(x[::-1]), rtol=1e-6)


def test_a_kernel_and_device_function_from_a_notebooks_cells():
    """Cells are compiled one by one in one namespace; a function defined later, or again, is the one that counts."""
    namespace = {"cuda": cuda, "float32": float32}
    cells = [
        "@cuda.jit\ndef scale(x, out):\n    i = cuda.grid(1)\n    if i < x.size:\n        out[i] = twice(x[i])\n",
        "@cuda.jit(device=True)\ndef twice(v):\n    return once(v) * float32(2)\n",
        "@cuda.jit(device=True)\ndef once(v):\n    return v\n",
    ]
    for number, cell in enumerate(cells):
        exec(compile(cell, f"<cell {number}>", "exec"), namespace)
    x, out = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    simulate(namespace["scale"], 2, 3, x, out)
    assert out.tolist() == [0, 2, 4, 6, 8]
    exec(compile("@cuda.jit(device=True)\ndef once(v):\n    return -v\n", "<cell 3>", "exec"), namespace)
    simulate(namespace["scale"], 2, 3, x, out)
    assert out.tolist() == [0, -2, -4, -6, -8]


def test_a_spin_on_a_flag_sleeps_until_others_have_run():
    def kernel(flag, out):
        if cuda.threadIdx.x == 0:
            while flag[0] == 0:
                cuda.nanosleep(100)
            out[0] = flag[0]
        else:
            flag[0] = 7

    flag, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    simulate(kernel, 1, 2, flag, out)
    assert out[0] == 7


def test_the_whole_grid_meets():
    def kernel(x, out):
        x[cuda.blockIdx.x] = cuda.blockIdx.x + 1
        cuda.cg.this_grid().sync()
        out[cuda.grid(1)] = x[(cuda.blockIdx.x + 1) % cuda.gridDim.x]
        cuda.cg.this_grid().sync()
        x[cuda.blockIdx.x] = 0

    for order in (None, 5):
        x, out = np.zeros(6, np.int32), np.zeros(12, np.int32)
        simulate(kernel, 6, 2, x, out, order=order)
        assert out.tolist() == [2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 1, 1] and (x == 0).all()


def test_a_thread_that_misses_the_grids_barrier_is_reported():
    def kernel(out):
        if cuda.grid(1) != 3:
            cuda.cg.this_grid().sync()
        out[cuda.grid(1)] = 1

    with pytest.raises(SimulationError, match=r"block \(0, 0, 0\) cannot go on: 2 threads .* wait at the grid.s barrier, line \d+ of"):
        simulate(kernel, 2, 2, np.zeros(4, np.int32))


UNKNOWN = [f"{place}.unheard_of(1)" for place in ("cuda", "cuda.atomic", "cuda.shared", "cuda.local", "cuda.const", "libdevice", "math")]


@pytest.mark.parametrize("call", UNKNOWN)
def test_what_is_not_known_names_itself_and_its_line(call):
    namespace = {"cuda": cuda, "libdevice": libdevice, "math": math}
    exec(compile(f"def kernel(out):\n    out[0] = 0\n    out[0] = {call}\n", "<cell 7>", "exec"), namespace)
    name = re.escape(call.partition("(")[0])
    with pytest.raises(SimulationError, match=rf"{name} is not known to the simulator \(<cell 7>:3 in kernel, block \(0, 0, 0\), thread"):
        simulate(namespace["kernel"], 1, 1, np.zeros(1, np.int32))


@pytest.mark.parametrize("call, name", [("out.argsort()", "argsort"), ("np.cumsum(out)", "numpy.cumsum")])
def test_what_arrays_of_a_kernel_cannot_do_names_itself_and_its_line(call, name):
    namespace = {"np": np}
    exec(compile(f"def kernel(out):\n    out[0] = {call}\n", "<cell 8>", "exec"), namespace)
    with pytest.raises(SimulationError, match=rf"{name} of the global array out is not known to the simulator \(<cell 8>:2 in kernel"):
        simulate(namespace["kernel"], 1, 1, np.zeros(1, np.float32))


def test_arrays_are_iterated_measured_and_reshaped_and_stored_by_the_slice():
    def kernel(x, out):
        total = 0
        for value in x:
            total += value
        out[0] = total
        out[1] = x.nbytes + x.strides[0]
        out[2] = x.reshape(2, 3)[1, 0]

    def slices(x, out):
        out[0:2] = 1

    for detect in (False, True):
        x, out = np.arange(6, dtype=np.int32), np.zeros(3, np.int32)
        simulate(kernel, 1, 1, x, out, detect=detect)
        assert out.tolist() == [15, 28, 3]
        simulate(slices, 1, 1, x, out, detect=detect)
        assert out.tolist() == [1, 1, 3]


def test_an_intrinsic_without_emulation_says_so_when_it_is_called():
    def make(call):
        def kernel(out):
            out[0] = int32(1)
            if call:
                out[0] = without_emulation(out[0])

        return kernel

    simulate(make(False), 1, 1, np.zeros(1, np.int32))
    with pytest.raises(SimulationError, match=r"without_emulation has no emulation.*test_cuda_names.py:\d+ in kernel"):
        simulate(make(True), 1, 1, np.zeros(1, np.int32))


def test_modules_of_cuda_that_a_kernel_refers_to():
    @cuda.jit
    def kernel(out):
        tile = cuda.shared.array(4, cuda.types.float32)
        tile[cuda.threadIdx.x] = cuda.types.int32(2.5)
        out[cuda.threadIdx.x] = cuda.libdevice.sqrtf(tile[cuda.threadIdx.x] * 2)

    out = np.zeros(4)
    simulate(kernel, 1, 4, out)
    assert out.tolist() == [2] * 4


def test_tuples_are_printed_without_the_types_of_their_numbers(capsys):
    @cuda.jit
    def kernel(x):
        print("at", cuda.threadIdx, (x[0], (1,)), x[0])

    simulate(kernel, 1, 1, np.full(1, 0.5, np.float32))
    assert capsys.readouterr().out == "at (0, 0, 0) (0.5, (1,)) 0.5\n"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("function", [math.modf, math.frexp])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_with_two_results(dtype, function, engine):
    def kernel(x, first, second):
        i = cuda.threadIdx.x
        first[i], second[i] = function(x[i])

    x, first, second = np.linspace(-3, 3, 32).astype(dtype), np.zeros(32, dtype), np.zeros(32, dtype)
    simulate(kernel, 1, 32, x, first, second, engine=engine)
    assert list(zip(first, second)) == [function(one) for one in x]
