"""Counts of a trace, against examples small enough to count by hand."""

import json
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, float32, float64, uint16, uint32, uint64

from minllm import ptx
from minllm.runtime.kernel import kernel, launch
from minllm.sim import detecting, simulate, trace, tracing, using_engine
from minllm.sim.traffic import Accesses, LaneAccess, sectors, sectors_of, turns, turns_of

WARP = 32


@pytest.fixture(autouse=True, params=["lanes", "threads"])
def engine(request):
    """Every count is the same, whichever engine runs the launch."""
    with using_engine(request.param):
        yield


@kernel
def copy_kernel(x, out, stride, shift):
    i = cuda.grid(1)
    out[i] = x[i * stride + shift]


@pytest.mark.parametrize(
    "stride, shift, sectors_per_request, unique_bytes",
    [
        (1, 0, 4, 1024),  # neighbours: 128 bytes are 4 sectors
        (1, 1, 5, 1024),  # 4 bytes off: the 128 bytes reach into a fifth
        (1, 8, 4, 1024),  # a whole sector off
        (2, 0, 8, 1024),  # every other element: twice the sectors
        (8, 0, 32, 1024),  # an element a sector
        (100, 3, 32, 1024),  # no element shares one with another
        (0, 5, 1, 4),  # all lanes want the same element
    ],
)
def test_sectors_of_a_copy(stride, shift, sectors_per_request, unique_bytes):
    x, out = np.arange(256 * 100 + 8, dtype=np.float32), np.zeros(256, np.float32)
    counts = copy_kernel.trace[2, 128](x, out, stride, shift)
    assert out.tolist() == [i * stride + shift for i in range(256)]
    read, write = counts.arrays["x"].read, counts.arrays["out"].write
    assert (read.requests, read.bytes, read.sectors) == (8, 1024, 8 * sectors_per_request)
    assert read.sectors_per_request == sectors_per_request and read.sector_bytes == 32 * read.sectors
    assert read.unique_bytes == unique_bytes
    assert (write.requests, write.bytes, write.sectors, write.unique_bytes) == (8, 1024, 32, 1024)
    assert counts.arrays["x"].write.requests == counts.arrays["out"].read.requests == counts.arrays["out"].atomic.requests == 0
    total = counts.total
    assert (total.requests, total.bytes, total.sectors) == (16, 2048, 8 * sectors_per_request + 32)


def test_vector_accesses_are_one_request_of_16_bytes_a_lane():
    def copy(x, out):
        i = cuda.grid(1) * 4
        word0, word1, word2, word3 = ptx.load_128(x, i)
        ptx.store_128(out, i, word0, word1, word2, word3)

    counts = trace(copy, 1, 64, np.arange(256, dtype=np.float32), np.zeros(256, np.float32))
    for traffic in (counts.arrays["x"].read, counts.arrays["out"].write):
        assert (traffic.requests, traffic.bytes, traffic.sectors_per_request, traffic.unique_bytes) == (2, 1024, 16, 1024)


def test_two_ways_to_one_line_are_two_instructions_and_loop_steps_are_requests_of_their_own():
    @cuda.jit(device=True)
    def element(x, i):
        return x[i]

    def add(x, out):
        lane = cuda.threadIdx.x
        total = element(x, lane) + element(x, lane + 1)
        for step in range(3):
            total += element(x, 32 * step)
        out[lane] = total

    counts = trace(add, 1, WARP, np.zeros(80, np.float32), np.zeros(WARP, np.float32))
    assert (counts.arrays["x"].read.requests, counts.arrays["x"].read.sectors) == (5, 4 + 5 + 3)


def test_a_row_read_again_costs_requests_but_no_different_bytes():
    def twice(x, out):
        lane = cuda.threadIdx.x
        out[lane] = x[lane] + x[lane]

    counts = trace(twice, 1, WARP, np.zeros(40, np.float32), np.zeros(WARP, np.float32))
    assert (counts.arrays["x"].read.bytes, counts.arrays["x"].read.unique_bytes, counts.arrays["x"].array_bytes) == (256, 128, 160)


def make_transpose(pitch):
    @kernel
    def transpose_kernel(x, out):
        # x, out [32, 32]: rows in, columns out
        tile = cuda.shared.array((32, pitch), float32)
        column, row = cuda.threadIdx.x, cuda.threadIdx.y
        tile[row, column] = x[row, column]
        cuda.syncthreads()
        out[row, column] = tile[column, row]

    return transpose_kernel


@pytest.mark.parametrize("pitch, worst", [(32, 32), (33, 1), (34, 2), (36, 4), (40, 8)])
def test_bank_conflicts_of_a_transposed_tile(pitch, worst):
    x, out = np.arange(1024, dtype=np.float32).reshape(32, 32), np.zeros((32, 32), np.float32)
    counts = make_transpose(pitch).trace[1, (32, 32)](x, out)
    assert (out == x.T).all() and counts.barriers == 1
    write, read = counts.shared
    assert (write.kind, write.requests, write.bytes, write.turns, write.least, write.worst) == ("write", 32, 4096, 32, 32, 1)
    assert (read.kind, read.requests, read.turns, read.least, read.worst) == ("read", 32, 32 * worst, 32, worst)
    assert read.line == write.line + 2 and read.array == "tile" and read.place == "test_trace.py, transpose_kernel"
    assert counts.bank_conflicts == read.conflicts == 32 * (worst - 1)


@pytest.mark.parametrize(
    "dtype, index, expected_turns, least, worst",
    [
        (float32, lambda lane: 7, 1, 1, 1),  # one word for all: a broadcast
        (float32, lambda lane: lane // 2, 1, 1, 1),  # one word for two
        (float32, lambda lane: 2 * lane, 2, 1, 2),
        (float32, lambda lane: 3 * lane, 1, 1, 1),  # odd steps meet every bank
        (float32, lambda lane: lane % 2 * 32, 2, 1, 2),  # two words of one bank, each wanted by many
        (uint16, lambda lane: lane, 1, 1, 1),  # two lanes a word
        (float64, lambda lane: lane, 2, 2, 1),  # half a warp at a time
        (float64, lambda lane: 2 * lane, 4, 2, 2),
        (float64, lambda lane: 16 * lane, 32, 2, 16),
    ],
)
def test_turns_of_shared_memory(dtype, index, expected_turns, least, worst):
    places = np.array([index(lane) for lane in range(WARP)], np.int32)

    def read(places, out):
        memory = cuda.shared.array(1024, dtype)
        out[cuda.threadIdx.x] = memory[places[cuda.threadIdx.x]]

    with detecting(False):  # it reads what nobody wrote: only the addresses matter here
        (line,) = trace(read, 1, WARP, places, np.zeros(WARP)).shared
    assert (line.turns, line.least, line.worst) == (expected_turns, least, worst)


@pytest.mark.parametrize("row_bytes, expected_turns, worst", [(16, 4, 1), (128, 32, 8), (144, 4, 1), (64, 16, 4), (32, 8, 2), (0, 4, 1)])
def test_128_bit_accesses_are_served_a_quarter_of_a_warp_at_a_time(row_bytes, expected_turns, worst):
    def read(out):
        memory = cuda.shared.array(2048, float32, 128)
        lane = cuda.threadIdx.x
        word0, word1, word2, word3 = ptx.load_128(memory, lane * row_bytes // 4)
        out[lane] = word0 | word1 | word2 | word3

    with detecting(False):
        (line,) = trace(read, 1, WARP, np.zeros(WARP, np.uint32)).shared
    assert (line.requests, line.bytes, line.turns, line.least, line.worst) == (1, 512, expected_turns, 4, worst)


def test_atomics_on_one_word_take_a_turn_each():
    def count(bins, out):
        histogram = cuda.shared.array(32, uint32)
        lane = cuda.threadIdx.x
        histogram[lane] = 0
        cuda.syncwarp()
        cuda.atomic.add(histogram, lane % 2, 1)
        cuda.atomic.add(out, bins[lane], 1)

    counts = trace(count, 1, WARP, np.zeros(WARP, np.int32), np.zeros(8, np.int32))
    write, atomic = counts.shared
    assert (write.turns, atomic.kind, atomic.turns, atomic.least, atomic.worst) == (1, "atomic", 16, 1, 16)
    assert counts.collectives == {"syncwarp": 1}
    traffic = counts.arrays["out"].atomic
    assert (traffic.requests, traffic.bytes, traffic.sectors, traffic.unique_bytes) == (1, 128, 1, 4)


@kernel
def multiply_kernel(x, out, steps):
    """Each step copies a tile by cp.async, two tiles ahead at most, and multiplies it by itself."""
    tile = cuda.shared.array(2 * 256, uint16, 128)
    a = cuda.local.array(4, uint32)
    acc = cuda.local.array(4, float32)
    for i in range(4):
        acc[i] = 0
    lane = cuda.threadIdx.x
    ptx.cp_async_16(ptx.shared_address(tile, lane * 8), x, lane * 8, 16)
    ptx.cp_async_commit_group()
    for step in range(steps):
        if step + 1 < steps:
            ptx.cp_async_16(ptx.shared_address(tile, (step + 1) % 2 * 256 + lane * 8), x, lane * 8, 16)
        ptx.cp_async_commit_group()
        ptx.cp_async_wait_group_1()
        cuda.syncthreads()
        ptx.ldmatrix_x4(a, 0, ptx.shared_address(tile, step % 2 * 256 + lane * 8))
        ptx.mma_m16n8k16_f16(acc, 0, a, 0, a, 0)
    out[lane] = acc[0]


def test_tensor_core_operations_and_the_pipeline_that_feeds_them():
    out = np.zeros(WARP, np.float32)
    counts = multiply_kernel.trace[1, WARP](np.ones(256, np.float16), out, 3)
    assert (out == 3 * 16).all()
    assert counts.flops == {"mma_m16n8k16_f16": 3 * 2 * 16 * 8 * 16} and counts.tensor_core_flops == counts.total_flops == 12288
    assert counts.collectives == {"ldmatrix_x4": 3, "mma_m16n8k16_f16": 3}
    x = counts.arrays["x"].read
    assert (x.requests, x.bytes, x.sectors, x.unique_bytes) == (3, 1536, 48, 512)
    assert counts.arithmetic_intensity == 12288 / (1536 + 128) and counts.best_arithmetic_intensity == 12288 / (512 + 128)
    # 2 lines copy, 1 loads fragments; a copy is counted once, where it starts.
    assert [(line.kind, line.requests, line.turns, line.conflicts, line.array) for line in counts.shared] == [
        ("write", 1, 4, 0, "tile"),
        ("write", 2, 8, 0, "tile"),
        ("read", 3, 12, 0, "tile"),
    ]
    assert [(group.issued, group.arrived, group.copies, group.bytes) for group in counts.pipeline] == [
        (0, 1, 1, 16),
        (0, 2, 1, 16),
        (1, 3, 1, 16),
        (2, None, 0, 0),
    ]
    assert counts.step_flops == [0, 4096, 4096, 4096]
    picture = ElementTree.fromstring(counts.timeline())
    assert sum("group" in (text.text or "") for text in picture.iter("{http://www.w3.org/2000/svg}text")) == 3


def test_bulk_copies_are_followed_from_their_start_to_the_wait_for_their_mbarrier():
    @kernel
    def fetch(x, out, rounds):
        tile = cuda.shared.array(64, float32, 128)
        barrier = cuda.shared.array(1, uint64, 8)
        full = ptx.shared_address(barrier, 0)
        lane = cuda.threadIdx.x
        if lane == 0:
            ptx.mbarrier_init(full, 1)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        for i in range(rounds):
            if lane == 0:
                ptx.mbarrier_arrive_expect_tx(full, 256)
                ptx.cp_async_bulk_shared_global(ptx.shared_address(tile, 0), x, 64 * i, 256, full)
            ptx.mbarrier_wait_parity(full, i & 1)
            out[lane] = tile[lane]
            cuda.syncthreads()

    x, out = np.arange(128, dtype=np.float32), np.zeros(WARP, np.float32)
    counts = fetch.trace[1, WARP](x, out, 2)
    assert out.tolist() == list(range(64, 96))
    assert (counts.arrays["x"].read.bytes, counts.arrays["x"].read.sectors, counts.arrays["x"].read.unique_bytes) == (512, 16, 512)
    # The copies' own writes of shared memory are no turns of the threads, and no warp is in parts for them.
    assert [(line.kind, line.turns, line.array) for line in counts.shared] == [("read", 2, "tile")] and not counts.partial
    assert [(group.issued, group.arrived, group.bytes) for group in counts.pipeline] == [(0, 1, 256), (1, 2, 256)]


@cuda.jit(device=True)
def scaled(value, factor):
    return value * factor


def test_float32_operations_are_counted_and_integers_and_comparisons_are_not():
    def arithmetic(x, out, factor):
        i = cuda.grid(1)
        pair = cuda.local.array(2, float32)
        pair[0], pair[1] = ptx.load_float32(x, 4 * i)[:2]
        total = scaled(pair[0] * pair[1], factor) - float32(x[i]) / pair[1]  # multiply, fma, divide
        total += math.exp(-total) + ptx.ex2(total) + float32(1)  # 3 sums, 2 functions
        total = cuda.fma(total, total, pair[0])  # 2
        out[i] = max(total, float32(i * 3 + 1))

    x = np.full(256, 2, np.float32)
    counts = trace(arithmetic, 1, 64, x, np.zeros(64, np.float32), np.float32(0.5))
    expected = {"float32 multiply": 1, "float32 add": 3, "float32 divide": 1, "float32 function": 2, "float32 multiply-add": 4}
    assert counts.flops == {kind: 64 * count for kind, count in expected.items()} and counts.tensor_core_flops == 0
    assert counts.total_flops == 64 * 11
    assert counts.best_arithmetic_intensity == 64 * 11 / (1024 + 64 * 4)  # x[i] lies inside of what the vectors touch


def test_counting_changes_no_result_and_no_function_outside_of_the_launch():
    def normalize(x, out):
        i = cuda.grid(1)
        out[i] = scaled(x[i], float32(3)) / math.sqrt(x[i])

    x, plain, traced = np.linspace(0.1, 9, 32, dtype=np.float32), np.zeros(32, np.float32), np.zeros(32, np.float32)
    simulate(normalize, 1, WARP, x, plain)
    counts = trace(normalize, 1, WARP, x, traced)
    np.testing.assert_array_equal(plain, traced)
    assert counts.total_flops == 32 * 3
    with tracing() as traces:
        assert trace(normalize, 1, WARP, x, traced).flops == traces[0].flops == counts.flops
    assert math.sqrt(np.float32(4)).__class__ is float and scaled.py_func(np.float32(2), np.float32(3)).__class__ is np.float32


def test_lines_that_part_of_a_warp_executes_are_listed():
    def diverge(x, out, n):
        i = cuda.grid(1)
        if i % 2 == 0:
            out[i] = 1.0
        if i < n:
            out[i] = x[i]

    first = diverge.__code__.co_firstlineno
    counts = trace(diverge, 2, 64, np.zeros(128, np.float32), np.zeros(128, np.float32), 70)
    # Of the 4 warps all diverge at the first branch; the third makes part of the guarded read, the fourth none.
    assert [(line.line - first, line.requests, line.partial) for line in counts.partial] == [(3, 4, 4), (5, 6, 2)]


def test_launches_inside_the_context_are_traced_and_only_those():
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with tracing() as traces:
        launch(copy_kernel, 1, 64, (x, out, 1, 0))
        launch(copy_kernel, 2, 32, (x, out, 1, 0))
    launch(copy_kernel, 1, 64, (x, out, 1, 0))
    assert [(counts.kernel, counts.grid, counts.block) for counts in traces] == [
        ("copy_kernel", (1, 1, 1), (64, 1, 1)),
        ("copy_kernel", (2, 1, 1), (32, 1, 1)),
    ]


def test_dynamic_shared_memory_is_named_and_counted():
    @kernel
    def through(x, out):
        staged = cuda.shared.array(0, float32)
        staged[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        out[cuda.threadIdx.x] = staged[cuda.threadIdx.x]

    counts = through.trace[1, WARP, None, 128](np.zeros(WARP, np.float32), np.zeros(WARP, np.float32))
    assert counts.shared_bytes == 128 and [line.array for line in counts.shared] == ["staged", "staged"]


def test_a_trace_can_be_read_as_text_as_json_and_as_pictures():
    x, out = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)
    counts = make_transpose(32).trace[1, (32, 32)](x, out)
    text = str(counts)
    assert "transpose_kernel" in text and "32-way" in text and "992" in text
    found = json.loads(counts.to_json())
    assert found["arrays"]["x"]["read"]["sectors_per_request"] == 4 and found["bank_conflicts"] == 992 and found["total"]["bytes"] == 8192

    def cells(picture):
        return sum(1 for text in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "in")

    assert cells(counts.access_map("x")) == 32  # a word a lane
    assert "32 turns, 1 at least" in counts.bank_map(kind="read") and cells(counts.bank_map(kind="read")) == 32
    assert ": 1 turn, 1 at least" in counts.bank_map("tile", kind="write")
    with pytest.raises(KeyError, match="no access of y, line any; there are: read of x"):
        counts.access_map("y")


def test_a_picture_is_saved_and_shown_as_svg(tmp_path):
    counts = copy_kernel.trace[1, WARP](np.zeros(64, np.float32), np.zeros(WARP, np.float32), 2, 0)
    picture = counts.access_map("x")
    picture.save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8") == picture._repr_svg_()
    assert "128 bytes requested, 8 sectors moved" in picture


requests = st.sampled_from([1, 2, 4, 8, 16]).flatmap(
    lambda width: st.lists(st.integers(0, 255), min_size=1, max_size=32).map(
        lambda places: [LaneAccess(lane, place * width, width) for lane, place in enumerate(places)]
    )
)


@given(requests)
@settings(max_examples=60, deadline=None)
def test_sectors_and_turns_agree_with_a_count_of_bytes(request):
    touched = np.zeros(256 * 16, bool)
    for _, start, width in request:
        touched[start : start + width] = True
    assert len(sectors(request)) == touched.reshape(-1, 32).any(1).sum()
    lanes = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[request[0].width]
    expected = []
    for first in range(0, 32, lanes):
        group = np.zeros(256 * 16, bool)
        for lane, start, width in request:
            group[start : start + width] |= first <= lane < first + lanes
        if group.any():
            expected.append(group.reshape(-1, 32, 4).any(2).sum(0).max())
    assert turns(request) == expected


@given(st.lists(requests, min_size=1, max_size=5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_many_requests_at_once_cost_what_each_costs(several, atomic):
    numbered = [(number, *access) for number, request in enumerate(several) for access in request]
    accesses = Accesses(*np.array(numbered[::-1]).T)
    assert sectors_of(accesses) == sum(len(sectors(request)) for request in several)
    assert turns_of(accesses, atomic).tolist() == [busy for request in several for busy in turns(request, atomic)]
