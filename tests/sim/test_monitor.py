"""Monitors see every access, barrier and warp-wide instruction of a simulated kernel, with its place."""

import numpy as np
from numba import cuda, float32, uint16, uint32

from minllm import ptx
from minllm.runtime.kernel import kernel
from minllm.sim import simulate
from minllm.sim.monitor import Monitor


class Recorder(Monitor):
    """Writes down what it is told."""

    def __init__(self):
        self.events = []

    def start(self, launch):
        self.events.append(("start", launch.grid, sorted(launch.arrays)))

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        self.events.append((kind, thread.number, array.space, array.root.name, array.name, start_byte, byte_count, frame.f_code.co_name))

    def barrier(self, block, threads):
        self.events.append(("barrier", len(threads)))

    def collective(self, warp, kind, lanes, mask, frame):
        self.events.append(("collective", warp.number, kind, len(lanes), frame.f_code.co_name))

    def flops(self, thread, count, kind):
        self.events.append(("flops", count, kind))

    def asynchronous(self, thread, event, array, start_byte, byte_count, frame):
        self.events.append((event, thread.number, start_byte, byte_count, frame.f_code.co_name))

    def end(self):
        self.events.append(("end",))


def test_accesses_carry_their_array_place_and_kind():
    @kernel
    def touch(x, counter):
        tile = cuda.shared.array((2, 4), float32)
        mine = cuda.local.array(3, uint32)
        row = x[1]
        tile[1, 2] = row[3]
        mine[2] = 7
        cuda.syncthreads()
        cuda.syncwarp()
        cuda.atomic.add(counter, 1, 5)

    recorder = Recorder()
    touch.simulate[1, 1](np.zeros((2, 4), np.float32), np.zeros(2, np.int32), monitors=[recorder])
    assert recorder.events == [
        ("start", (1, 1, 1), ["counter", "x"]),
        ("read", 0, "global", "x", "x", 28, 4, "touch"),
        ("write", 0, "shared", "", "tile", 24, 4, "touch"),
        ("write", 0, "local", "mine", "mine", 8, 4, "touch"),
        ("barrier", 1),
        ("collective", 0, "syncwarp", 1, "touch"),
        ("atomic", 0, "global", "counter", "counter", 4, 4, "touch"),
        ("end",),
    ]


def test_wide_and_asynchronous_accesses_and_tensor_cores_are_seen():
    @cuda.jit(device=True)
    def copy(tile, x, lane):
        ptx.cp_async_16(ptx.shared_address(tile, lane * 8), x, lane * 8, 16)

    def multiply(x, out):
        tile = cuda.shared.array(256, uint16, 128)
        a = cuda.local.array(4, uint32)
        acc = cuda.local.array(4, float32)
        for i in range(4):
            acc[i] = 0
        lane = cuda.threadIdx.x
        copy(tile, x, lane)
        ptx.cp_async_commit_group()
        ptx.cp_async_wait_group_0()
        cuda.syncthreads()
        ptx.ldmatrix_x4(a, 0, ptx.shared_address(tile, lane * 8))
        ptx.mma_m16n8k16_f16(acc, 0, a, 0, a, 0)
        out[lane] = acc[0]

    recorder = Recorder()
    simulate(multiply, 1, 32, np.ones((16, 16), np.float16), np.zeros(32, np.float32), monitors=[recorder, Monitor()])
    events = [event for event in recorder.events if "local" not in event]
    assert events[1:3] == [("read", 0, "global", "x", "x", 0, 16, "copy"), ("cp_async", 0, 0, 16, "copy")]
    assert ("write", 31, "shared", "", "", 31 * 16, 16, "multiply") in events
    assert ("read", 31, "shared", "", "", 31 * 16, 16, "multiply") in events
    assert [event for event in events if event[0] == "flops"] == [("flops", 4096, "mma_m16n8k16_f16")]
    assert ("collective", 0, "ldmatrix_x4", 32, "multiply") in events


def test_one_array_given_twice_is_one_root():
    roots = set()

    class Roots(Monitor):
        def access(self, thread, array, start_byte, byte_count, kind, frame):
            roots.add(id(array.root))

    def add(x, y):
        x[0] = x[0] + y[0]

    x = np.ones(3, np.float32)
    simulate(add, 1, 1, x, x, monitors=[Roots()])
    assert len(roots) == 1 and x[0] == 2


def test_a_seed_shuffles_the_blocks_and_keeps_every_one():
    def order(out, counter):
        out[cuda.blockIdx.x] = cuda.atomic.add(counter, 0, 1)

    runs = []
    for seed in (None, 1, 1, 2):
        out = np.zeros(16, np.int32)
        simulate(order, 16, 1, out, np.zeros(1, np.int32), order=seed)
        assert sorted(out) == list(range(16))
        runs.append(out.tolist())
    assert runs[0] == list(range(16)) and runs[1] == runs[2] != runs[3] and runs[1] != runs[0]


def test_accesses_that_one_monitor_no_longer_needs_reach_the_others():
    """The detector of unwritten reads is done with a thread's array once all of it is written."""

    @kernel
    def sum_of_two(out):
        mine = cuda.local.array(2, float32)
        mine[0] = float32(1)
        mine[1] = float32(2)
        out[0] = mine[0] + mine[1]

    recorder, out = Recorder(), np.zeros(1, np.float32)
    sum_of_two.simulate[1, 1](out, monitors=[recorder], detect=True)
    assert out[0] == 3
    assert [event[:3] for event in recorder.events if "local" in event] == [("write", 0, "local")] * 2 + [("read", 0, "local")] * 2
