"""Arrays as Numba takes them: any strides, records, stores to slices, ufuncs; and what a GPU refuses."""

import ml_dtypes
import numpy as np
import pytest
from numba import boolean, cuda, float32, uint64

from minllm.errors import SimulationError
from minllm.sim import simulate
from minllm.sim.arrays import CheckedArray

BOTH = pytest.mark.parametrize("detect", [False, True])


def double(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = x[i, j] * 2


@BOTH
@pytest.mark.parametrize(
    "view",
    [
        lambda x: np.asfortranarray(x),
        lambda x: x.T,
        lambda x: x[::2],
        lambda x: x[:, ::-1],
        lambda x: x[:, 1:2],
        lambda x: np.broadcast_to(x[0], x.shape),
    ],
)
def test_arrays_of_any_strides(view, detect):
    x = view(np.arange(48, dtype=np.float32).reshape(8, 6))
    out = view(np.zeros((8, 6), np.float32)) if x.flags.writeable else np.zeros((8, 6), np.float32)
    simulate(double, (1, 1), (8, 8), x, out, detect=detect)
    np.testing.assert_array_equal(out, x * 2)


def test_a_race_in_a_strided_array_names_its_element():
    def kernel(x):
        x[2] = cuda.threadIdx.x

    with pytest.raises(SimulationError, match=r"writes the global array x, element \[2\]"):
        simulate(kernel, 1, 2, np.zeros(12)[::3], detect=True)
    with pytest.raises(SimulationError, match=r"writes the global array x, element \[2\]"):
        simulate(kernel, 1, 2, np.zeros(12)[::-1], detect=True)


@BOTH
def test_slices_are_stored(detect):
    def kernel(x, out):
        out[:] = 0
        out[1, 1:3] = x[:2]
        out[2] = x
        out[:, 3] += 1
        out.ravel()[0] = 7

    out = np.full((3, 4), 9, np.float32)
    simulate(kernel, 1, 1, np.arange(1.0, 5, dtype=np.float32), out, detect=detect)
    assert out.tolist() == [[7, 0, 0, 1], [0, 1, 2, 1], [1, 2, 3, 5]]


def test_values_that_do_not_fit_a_slice_are_errors_of_the_simulator():
    def kernel(x, out):
        out[:2] = x

    with pytest.raises(SimulationError, match=r"values of shape \(4,\) cannot be stored to a part of the global array out of shape \(2,\)"):
        simulate(kernel, 1, 1, np.zeros(4), np.zeros(3))


@BOTH
def test_ufuncs_and_reductions(detect):
    def kernel(x, out, sums):
        np.fmax(x, np.float32(2), out)
        sums[0], sums[1] = x.sum(), (x + x).max()

    out, sums = np.zeros(3, np.float32), np.zeros(2)
    simulate(kernel, 1, 1, np.array([1, 2, 3], np.float32), out, sums, detect=detect)
    assert out.tolist() == [2, 2, 3] and sums.tolist() == [6, 6]


POINT = np.dtype([("a", np.int32), ("b", np.float32), ("c", np.float32, 2)])


@BOTH
def test_records_by_element_and_by_field(detect):
    def kernel(r, other):
        i = cuda.threadIdx.x
        r[i].a = r["a"][i] + 10
        r["b"][i] = r[i]["b"] / 2
        r[i].c[1] = r[i].a
        other[i] = r[i]

    r, other = np.zeros(3, POINT), np.zeros(3, POINT)
    r["a"], r["b"] = [-1, 1, 2], [1, 2, 3]
    simulate(kernel, 1, 3, r, other, detect=detect)
    assert r["a"].tolist() == [9, 11, 12] and r["b"].tolist() == [0.5, 1, 1.5] and r["c"][:, 1].tolist() == [9, 11, 12]
    assert (other == r).all()


@BOTH
def test_the_array_of_a_field_is_made_once(detect, monkeypatch):
    def kernel(r):
        for _ in range(50):
            r[0].a += 1

    made, make = [], CheckedArray.__init__
    monkeypatch.setattr(CheckedArray, "__init__", lambda self, *given: made.append(self) or make(self, *given))
    simulate(kernel, 1, 1, r := np.zeros(1, POINT), detect=detect)
    assert r["a"][0] == 50
    assert len(made) < 5  # making one takes as long as ten accesses


def test_a_missing_field_is_named():
    def kernel(r):
        r[0].mass = 1

    with pytest.raises(SimulationError, match=r"the global array r has no field 'mass': a, b, c \(.*:\d+ in kernel"):
        simulate(kernel, 1, 1, np.zeros(1, POINT))


@BOTH
def test_booleans_in_shared_memory_and_arrays_without_axes(detect):
    def kernel(x, out):
        flags = cuda.shared.array(32, boolean)
        i = cuda.threadIdx.x
        flags[i] = x[()] > i
        cuda.syncthreads()
        if i == 0:
            count = 0
            for j in range(32):
                if flags[j]:
                    count += 1
            out[()] = count

    out = np.zeros((), np.int32)
    simulate(kernel, 1, 32, np.array(5.0), out, detect=detect)
    assert out[()] == 5


@BOTH
def test_arrays_and_functions_in_tuples(detect):
    @cuda.jit(device=True)
    def square(x):
        return x * x

    def kernel(arrays, function, out):
        i = cuda.threadIdx.x
        out[i] = function(arrays[0][i]) + arrays[1][i]

    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    simulate(kernel, 1, 4, (x, x), square, out, detect=detect)
    assert out.tolist() == [0, 2, 6, 12]
    with pytest.raises(SimulationError, match=r"out of bounds for the global array arrays\[0\] of shape \(4,\)"):
        simulate(kernel, 1, 5, (x, x), square, np.zeros(5, np.float32), detect=detect)


@pytest.mark.parametrize("block", [2048, (1, 1, 128), (32, 64)])
def test_blocks_that_a_gpu_refuses(block):
    with pytest.raises(SimulationError, match="a GPU takes 1024 in all, and 64 along z"):
        simulate(double, 1, block, np.zeros((1, 1)), np.zeros((1, 1)))


def test_numpy_reductions_of_an_array():
    def kernel(x, out):
        out[0] = np.sum(x)
        out[1] = np.nanmax(x[1:])
        out[2] = np.count_nonzero(x)

    out = np.zeros(3)
    simulate(kernel, 1, 1, np.array([4.0, 0.0, 2.0]), out, detect=True)
    assert out.tolist() == [6, 2, 2]


def test_more_static_shared_memory_than_a_gpu_has():
    def kernel(out):
        tile = cuda.shared.array(20_000, float32)
        out[0] = tile.size

    with pytest.raises(SimulationError, match="80000 bytes of static shared arrays; a block has at most 49152, more only as dynamic ones"):
        simulate(kernel, 1, 1, np.zeros(1))


@pytest.mark.parametrize("value, message", [((1, 2), "a tuple cannot be stored"), ("word", "a str cannot be stored")])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, ml_dtypes.bfloat16])
def test_no_raw_error_for_a_value_that_is_no_number(value, message, dtype):
    def kernel(out):
        out[0] = value

    with pytest.raises(SimulationError, match=message):
        simulate(kernel, 1, 1, np.zeros(1, dtype))


LAST = -1


def test_a_negative_index_counts_from_the_end():
    def kernel(x, y, rows, out):
        out[0], out[1], out[2] = x[-1], y[1, -2], y[LAST, LAST]
        out[-1] = 7
        out[-2] += rows["n"][-1] + rows[-2].n
        cuda.atomic.add(out, -3, 4)
        for i in range(2):
            out[3 + i] = x[-2 - i]  # allow-negative: the last elements, backwards

    x, out, rows = np.arange(4.0), np.zeros(8), np.array([(1,), (2,), (3,)], [("n", np.int32)])
    for detect in (False, True):
        out[:] = 0
        simulate(kernel, 1, 1, x, x.reshape(2, 2), rows, out, detect=detect)
        assert out.tolist() == [3, 2, 3, 2, 1, 4, 5, 7]


def test_a_negative_index_that_is_computed_is_reported_and_one_beyond_the_start_is_out_of_bounds():
    def edge(x, out, i, j):
        out[0] = x[j, i - 1]

    x, out = np.arange(4.0).reshape(2, 2), np.zeros(1)
    simulate(edge, 1, 1, x, out, 0, 1, detect=False)
    assert out[0] == 3
    match = r"index \[1, -1\] into the global array x of shape \(2, 2\) is negative: .* element 1 of axis 1 \(.*array_forms.py"
    with pytest.raises(SimulationError, match=match):
        simulate(edge, 1, 1, x, out, 0, 1, detect=True)
    for detect in (False, True):
        with pytest.raises(SimulationError, match=r"index \[1, -3\] is out of bounds"):
            simulate(edge, 1, 1, x, out, -2, 1, detect=detect)


def test_an_unsigned_index_does_not_count_from_the_end():
    def before(x, out, i):
        out[0] = x[i - uint64(1)]

    with pytest.raises(SimulationError, match=r"index \[18446744073709551615\] is out of bounds"):
        simulate(before, 1, 1, np.zeros(4), np.zeros(1), np.uint64(0), detect=False)


def test_a_field_of_all_records_is_an_array():
    def kernel(r):
        i = cuda.threadIdx.x
        r.count[i] += i * 3
        r.mass[i] = r.count[i] * 0.5

    r = np.zeros(4, [("mass", np.float64), ("count", np.int32)])
    simulate(kernel, 1, 4, r, detect=True)
    assert r["count"].tolist() == [0, 3, 6, 9] and r["mass"].tolist() == [0, 1.5, 3, 4.5]


class Tensor:
    """Another library's array on the host, as PyTorch's: it gives its memory away by DLPack."""

    def __init__(self, array):
        self.array = array
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


@cuda.jit
def twice(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * 2


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_tensors_on_the_host_are_arrays(engine):
    x, out = np.arange(37, dtype=np.float32), np.zeros(37, np.float32)
    simulate(twice, 2, 32, Tensor(x), Tensor(out), engine=engine)
    np.testing.assert_array_equal(out, 2 * x)


@BOTH
def test_fields_with_the_names_of_the_simulators_attributes(detect):
    names = ["data", "base", "name", "fields", "notes", "values", "root", "_index"]

    def kernel(r):
        i = cuda.threadIdx.x
        r.data[i] = r.base[i] = r.name[i] = i + 1
        r.fields[i] = r.notes[i] = r.values[i] = r.root[i] = i + 1
        r[i]._index = r._index[i] + i + 1

    simulate(kernel, 1, 3, r := np.zeros(3, [(name, np.float64) for name in names]), detect=detect)
    assert all(r[name].tolist() == [1, 2, 3] for name in names)


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_the_elements_of_an_array_are_counted_and_unpacked(engine):
    def kernel(x, out):
        i = cuda.threadIdx.x
        first, second = x[1]
        out[i] = x.flat[i] + 10 * first + 100 * second

    simulate(kernel, 1, 8, np.arange(8.0).reshape(4, 2), out := np.zeros(8), engine=engine)
    assert out.tolist() == [320 + i for i in range(8)]

    def of_columns(x, out):
        out[0] = x[:, 0].flat[0]

    with pytest.raises(SimulationError, match=r"has gaps: it cannot be indexed by .flat"):
        simulate(of_columns, 1, 1, np.arange(8.0).reshape(4, 2), out)


@BOTH
def test_a_field_by_its_name_has_its_type(detect):
    def kernel(r, out):
        i = cuda.threadIdx.x
        b = r["b"]
        v = b[i] if i > 0 else 0.5  # a float64
        out[i] = v * v
        cuda.atomic.add(r["a"], i, 1)
        out[i] += r[i]["b"] * 3

    r, out = np.zeros(3, POINT), np.zeros(3)
    r["b"] = 0.1
    simulate(cuda.jit(debug=True, opt=False)(kernel), 1, 3, r, out, detect=detect)
    wide = float(np.float32(0.1))
    assert out.tolist() == [0.25 + wide * 3] + 2 * [wide * wide + wide * 3]
    assert r["a"].tolist() == [1, 1, 1]
