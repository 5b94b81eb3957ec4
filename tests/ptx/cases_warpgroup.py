"""wgmma: kernels that multiply [64, depth] by [n, depth] transposed, in every layout of shared memory, and what they must give."""

import functools

import ml_dtypes
import numpy as np
from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.runtime.kernel import kernel, launch
from minllm.runtime.tensor_map import tensor_map

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
DTYPES = {"bf16": BFLOAT16, "f16": FLOAT16, "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "s8": np.dtype(np.int8)}
ROWS, LINE = 64, 128  # rows of A, and bytes of a row of A or B: 64 elements of 16 bits, 128 of 8
THREADS = 128
TOLERANCE = {"e4m3": 1e-2, "s8": 0}  # Hopper keeps some 14 bits of a sum of e4m3
# n, dtype, where A is, A's major, B's major, swizzle
PRODUCTS = [
    (8, "bf16", "shared", "k", "k", 128),
    (24, "f16", "shared", "k", "k", 64),
    (64, "bf16", "shared", "k", "k", 32),
    (104, "bf16", "shared", "k", "k", 0),
    (256, "f16", "shared", "k", "k", 128),
    (64, "bf16", "shared", "mn", "mn", 128),
    (40, "f16", "shared", "mn", "mn", 64),
    (96, "bf16", "shared", "mn", "mn", 32),
    (72, "bf16", "shared", "mn", "mn", 0),
    (128, "bf16", "shared", "k", "mn", 128),
    (16, "f16", "shared", "mn", "k", 128),
    (8, "f16", "registers", "k", "k", 128),
    (200, "bf16", "registers", "k", "mn", 128),
    (256, "bf16", "registers", "k", "k", 64),
    (8, "e4m3", "shared", "k", "k", 128),
    (200, "e4m3", "shared", "k", "k", 64),
    (256, "e4m3", "registers", "k", "k", 128),
    (24, "s8", "shared", "k", "k", 0),
    (224, "s8", "shared", "k", "k", 128),
    (48, "s8", "registers", "k", "k", 32),
]


class Layout:
    """How copies of boxes lay a matrix of rows of 128 bytes into shared memory, and how its descriptors read."""

    def __init__(self, rows, major, swizzle, itemsize):
        self.line, depth = max(swizzle, 16), LINE // itemsize  # bytes of a box's line, elements of a row
        self.elements = self.line // itemsize
        self.major = major
        if major == "k":
            self.boxes, self.box = LINE // self.line, (rows, self.elements)
            self.leading, self.stride = rows * 16, 8 * self.line
        else:
            self.boxes, self.box = -(-rows // self.elements), (depth, self.elements)
            self.leading, self.stride = (depth * self.line, 8 * self.line) if swizzle else (128, depth * 16)
        self.box_bytes = self.box[0] * self.line
        self.bytes = -(-self.boxes * self.box_bytes // 1024) * 1024

    def step(self, step):
        """Bytes from the start of the matrix to the depth of the step-th product, 32 bytes of a row."""
        if self.major == "mn":
            return 16 * step * self.line
        return 32 * step // self.line * self.box_bytes + 32 * step % self.line


@functools.cache
def make_product_kernel(n, dtype, a_place, a_major, b_major, swizzle):
    """C [64, n] = A B^T by one warpgroup; A and B come through tensor maps, or A's words from global memory."""
    itemsize = DTYPES[dtype].itemsize
    a, b = Layout(ROWS, a_major, swizzle, itemsize), Layout(n, b_major, swizzle, itemsize)
    a_boxes, a_box_bytes, a_elements, a_leading, a_stride = a.boxes, a.box_bytes, a.elements, a.leading, a.stride
    b_boxes, b_box_bytes, b_elements, b_leading, b_stride = b.boxes, b.box_bytes, b.elements, b.leading, b.stride
    a_bytes, barrier_at = a.bytes, a.bytes + b.bytes
    in_registers = int(a_place == "registers")
    a_steps, b_steps = tuple(a.step(s) for s in range(4)), tuple(b.step(s) for s in range(4))
    wgmma = ptx.make_wgmma(n, dtype, a_place, a_major, b_major)
    accumulators, blocks, sums = n // 2, n // 8, int32 if dtype == "s8" else float32
    expected = b_boxes * b_box_bytes + (1 - in_registers) * a_boxes * a_box_bytes

    @cuda.jit(device=True)
    def fetch(tiles, a_map, b_map, barrier):
        ptx.mbarrier_arrive_expect_tx(barrier, expected)
        if not in_registers:
            for box in range(a_boxes):
                at = box * a_elements
                ptx.cp_async_bulk_tensor_2d_shared_global(tiles + box * a_box_bytes, a_map, at, 0, barrier)
        for box in range(b_boxes):
            ptx.cp_async_bulk_tensor_2d_shared_global(tiles + a_bytes + box * b_box_bytes, b_map, box * b_elements, 0, barrier)

    @cuda.jit(device=True)
    def load_words(words, a_words, row, lane):
        for step in range(4):
            for half in range(2):
                column = 8 * step + 4 * half + (lane & 3)
                words[4 * step + 2 * half] = a_words[row, column]
                words[4 * step + 2 * half + 1] = a_words[row + 8, column]

    @cuda.jit(device=True)
    def multiply_shared(accumulator, words, tiles):
        for step in range(4):
            left = ptx.matrix_descriptor(tiles + a_steps[step], a_leading, a_stride, swizzle)
            right = ptx.matrix_descriptor(tiles + a_bytes + b_steps[step], b_leading, b_stride, swizzle)
            wgmma(accumulator, left, right, step)

    @cuda.jit(device=True)
    def multiply_registers(accumulator, words, tiles):
        for step in range(4):
            right = ptx.matrix_descriptor(tiles + a_bytes + b_steps[step], b_leading, b_stride, swizzle)
            wgmma(accumulator, words, 4 * step, right, step)

    multiply = multiply_registers if in_registers else multiply_shared

    @kernel(launch_bounds=(THREADS, 1))
    def product_kernel(a_map, b_map, a_words, c):
        memory = cuda.shared.array(0, uint8, 1024)
        tiles = uint32((ptx.shared_address(memory, 0) + uint32(1023)) & uint32(0xFFFFFC00))
        barrier = tiles + barrier_at
        thread = cuda.threadIdx.x
        lane, row = thread & 31, (thread >> 5) * 16 + (thread >> 2 & 7)
        if thread == 0:
            ptx.fence_proxy_tensormap_acquire(a_map)
            ptx.fence_proxy_tensormap_acquire(b_map)
            ptx.mbarrier_init(barrier, 1)
            ptx.fence_mbarrier_init()
            fetch(tiles, a_map, b_map, barrier)
        cuda.syncthreads()
        words = cuda.local.array(16, uint32)
        load_words(words, a_words, row, lane)
        accumulator = cuda.local.array(accumulators, sums)
        ptx.mbarrier_wait_parity(barrier, 0)
        ptx.wgmma_fence()
        multiply(accumulator, words, tiles)
        ptx.wgmma_commit_group()
        ptx.wgmma_wait_group_0()
        ptx.keep_registers(accumulator, accumulators)
        column = 2 * (lane & 3)
        for block in range(blocks):
            c[row, column + 8 * block] = accumulator[4 * block]
            c[row, column + 8 * block + 1] = accumulator[4 * block + 1]
            c[row + 8, column + 8 * block] = accumulator[4 * block + 2]
            c[row + 8, column + 8 * block + 1] = accumulator[4 * block + 3]

    return product_kernel, a, b, barrier_at + 16 + 1024


def product_arguments(product, device):
    """The kernel's arguments, and A and B on the host."""
    n, dtype, _, a_major, b_major, swizzle = product
    rng = np.random.default_rng(n)
    shapes, kind = [(rows, LINE // DTYPES[dtype].itemsize) for rows in (ROWS, n)], DTYPES[dtype]
    host = [rng.integers(-128, 128, shape, kind) if dtype == "s8" else rng.standard_normal(shape).astype(kind) for shape in shapes]
    _, *layouts, _ = make_product_kernel(*product)
    arrays = [device.array(np.ascontiguousarray(x if major == "k" else x.T)) for x, major in zip(host, (a_major, b_major))]
    maps = [tensor_map(array, layout.box, swizzle) for array, layout in zip(arrays, layouts)]
    words = device.array(host[0].view(np.uint32))
    return (*maps, words, device.array(np.full((ROWS, n), np.nan, np.float32))), host


def check_product(product, device):
    """The product is A B^T, to the rounding of a float32 sum, or of e4m3's shorter one; exact for integers."""
    arguments, (a, b) = product_arguments(product, device)
    product_kernel, _, _, shared_bytes = make_product_kernel(*product)
    launch(product_kernel, 1, THREADS, arguments, shared_bytes=shared_bytes)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    tolerance = TOLERANCE.get(product[1], 1e-4)
    np.testing.assert_allclose(device.host(arguments[3]), expected, rtol=tolerance, atol=tolerance)
