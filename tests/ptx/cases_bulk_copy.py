"""Bulk copies: kernels that move tiles and runs of bytes through shared memory, and what must arrive."""

import functools
import math

import ml_dtypes
import numpy as np
from numba import cuda, int32, uint8, uint16, uint32, uint64

from minllm import ptx
from minllm.runtime.kernel import kernel, launch
from minllm.runtime.tensor_map import tensor_map

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# shape, box, swizzle, dtype, corner in the array's axes, fill
TILES = [
    ((40,), (16,), 0, np.float32, (32,), "zeros"),
    ((64,), (64,), 128, BFLOAT16, (-8,), "nan"),
    ((20, 64), (8, 64), 128, BFLOAT16, (8, 0), "zeros"),
    ((20, 72), (8, 32), 64, np.float16, (16, 48), "zeros"),
    ((7, 16), (9, 16), 32, np.uint16, (-1, 0), "zeros"),
    ((5, 48), (3, 32), 0, np.uint8, (3, 32), "zeros"),
    ((3, 7, 32), (2, 3, 32), 128, np.int32, (2, -2, 0), "zeros"),
    ((2, 5, 3, 16), (1, 4, 2, 16), 64, np.float32, (1, 3, 1, 0), "nan"),
    ((2, 3, 2, 3, 8), (1, 2, 2, 2, 8), 32, np.float32, (1, 2, 0, 1, 0), "zeros"),
]
RUNS = [16, 48, 1024, 8192]
THREADS = 64


@functools.cache
def make_tile_kernel(axes, tile_bytes):
    """Fetches one tile, writes the raw bytes of shared memory to `raw`, and stores the tile from there through another map, if `stores`."""
    load = getattr(ptx, f"cp_async_bulk_tensor_{axes}d_shared_global")
    store = getattr(ptx, f"cp_async_bulk_tensor_{axes}d_global_shared")
    barrier_at = -(-tile_bytes // 16) * 16

    @cuda.jit(device=True)
    def load_1(tile, source, c0, c1, c2, c3, c4, barrier):
        load(tile, source, c0, barrier)

    @cuda.jit(device=True)
    def load_2(tile, source, c0, c1, c2, c3, c4, barrier):
        load(tile, source, c0, c1, barrier)

    @cuda.jit(device=True)
    def load_3(tile, source, c0, c1, c2, c3, c4, barrier):
        load(tile, source, c0, c1, c2, barrier)

    @cuda.jit(device=True)
    def load_4(tile, source, c0, c1, c2, c3, c4, barrier):
        load(tile, source, c0, c1, c2, c3, barrier)

    @cuda.jit(device=True)
    def load_5(tile, source, c0, c1, c2, c3, c4, barrier):
        load(tile, source, c0, c1, c2, c3, c4, barrier)

    @cuda.jit(device=True)
    def store_1(target, c0, c1, c2, c3, c4, tile):
        store(target, c0, tile)

    @cuda.jit(device=True)
    def store_2(target, c0, c1, c2, c3, c4, tile):
        store(target, c0, c1, tile)

    @cuda.jit(device=True)
    def store_3(target, c0, c1, c2, c3, c4, tile):
        store(target, c0, c1, c2, tile)

    @cuda.jit(device=True)
    def store_4(target, c0, c1, c2, c3, c4, tile):
        store(target, c0, c1, c2, c3, tile)

    @cuda.jit(device=True)
    def store_5(target, c0, c1, c2, c3, c4, tile):
        store(target, c0, c1, c2, c3, c4, tile)

    load_tile = (load_1, load_2, load_3, load_4, load_5)[axes - 1]
    store_tile = (store_1, store_2, store_3, store_4, store_5)[axes - 1]

    @kernel
    def tile_kernel(source, target, raw, stores, c0, c1, c2, c3, c4):
        memory = cuda.shared.array(0, uint8, 1024)
        start = uint32(-ptx.shared_address(memory, 0) & uint32(1023))
        tile = uint32(ptx.shared_address(memory, 0) + start)
        barrier = tile + barrier_at
        thread = cuda.threadIdx.x
        if thread == 0:
            ptx.fence_proxy_tensormap_acquire(source)
            ptx.fence_proxy_tensormap_acquire(target)
            ptx.mbarrier_init(barrier, 1)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        if thread == 0:
            ptx.mbarrier_arrive_expect_tx(barrier, tile_bytes)
            load_tile(tile, source, c0, c1, c2, c3, c4, barrier)
        ptx.mbarrier_wait_parity(barrier, 0)
        i = thread
        while i < tile_bytes:
            raw[i] = memory[start + i]
            i += THREADS
        if thread == 0 and stores:
            store_tile(target, c0, c1, c2, c3, c4, tile)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group_0()

    return tile_kernel, barrier_at + 8 + 1024


def tile_arguments(case, device):
    """The kernel's arguments for a case of TILES; the source on the host."""
    shape, box, swizzle, dtype, corner, fill = case
    dtype = np.dtype(dtype)
    host = np.random.default_rng(0).integers(0, 120, shape).astype(dtype)
    source, target, raw = (device.array(x) for x in (host, np.zeros_like(host), np.zeros(math.prod(box) * dtype.itemsize, np.uint8)))
    coordinates = [*reversed(corner), 0, 0, 0, 0][:5]
    stores = int(min(corner) >= 0)  # a fetch may begin before the array, a store may not
    return (tensor_map(source, box, swizzle, fill), tensor_map(target, box, swizzle), raw, stores, *coordinates), host, target


def expected_tile(host, box, corner, fill):
    """The box at `corner`, element by element: what lies outside is filled."""
    tile = np.full(box, np.nan if fill == "nan" else 0).astype(host.dtype)
    for index in np.ndindex(*box):
        place = tuple(c + i for c, i in zip(corner, index))
        if all(0 <= p < n for p, n in zip(place, host.shape)):
            tile[index] = host[place]
    return tile


def check_tile(case, device):
    """A tile arrives swizzled and filled, and goes back to where it came from, unless that begins before the array."""
    shape, box, swizzle, _, corner, fill = case
    arguments, host, target = tile_arguments(case, device)
    tile_kernel, shared_bytes = make_tile_kernel(len(shape), arguments[2].size)
    launch(tile_kernel, 1, THREADS, arguments, shared_bytes=shared_bytes)
    raw, tile = device.host(arguments[2]), expected_tile(host, box, corner, fill)
    places = np.arange(raw.size)
    if swizzle:  # the 16-byte chunk within its line of `swizzle` bytes is exchanged by the number of the 128-byte line
        places ^= (places >> 7) % (swizzle // 16) << 4
    found = raw[places].view(host.dtype).reshape(box)
    np.testing.assert_array_equal(found.astype(np.float64), tile.astype(np.float64))
    inside = np.zeros_like(host)
    for index in np.ndindex(*box) if min(corner) >= 0 else ():
        place = tuple(c + i for c, i in zip(corner, index))
        if all(0 <= p < n for p, n in zip(place, shape)):
            inside[place] = host[place]
    np.testing.assert_array_equal(device.host(target).astype(np.float64), inside.astype(np.float64))


@functools.cache
def make_run_kernel(byte_count):
    """Fetches a run of bytes, adds one to each 16-bit word in shared memory, and copies the run out."""
    words = byte_count // 2

    @kernel
    def run_kernel(source, target, at):
        run = cuda.shared.array(words, uint16, 128)
        barriers = cuda.shared.array(1, uint64, 8)
        barrier, address, thread = ptx.shared_address(barriers, 0), ptx.shared_address(run, 0), cuda.threadIdx.x
        if thread == 0:
            ptx.mbarrier_init(barrier, 1)
            ptx.fence_mbarrier_init()
            ptx.mbarrier_expect_tx(barrier, byte_count)
            ptx.cp_async_bulk_shared_global(address, source, at, byte_count, barrier)
            ptx.mbarrier_arrive(barrier)
        cuda.syncthreads()
        ptx.mbarrier_wait_parity(barrier, 0)
        i = thread
        while i < words:
            run[i] = uint16(int32(run[i]) + 1)
            i += THREADS
        ptx.fence_proxy_async()
        cuda.syncthreads()
        if thread == 0:
            ptx.cp_async_bulk_global_shared(target, at, address, byte_count)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group_read_0()
            ptx.mbarrier_inval(barrier)

    return run_kernel


def check_run(byte_count, device):
    """A run of bytes comes, is changed and goes."""
    source = np.arange(byte_count, dtype=np.uint16)
    arrays = device.array(source), device.array(np.zeros_like(source))
    launch(make_run_kernel(byte_count), 1, THREADS, (*arrays, 8))
    expected = np.zeros_like(source)
    expected[8 : 8 + byte_count // 2] = source[8 : 8 + byte_count // 2] + 1
    np.testing.assert_array_equal(device.host(arrays[1]), expected)
