"""The emulation of wgmma.

A wgmma is computed for all 128 threads of a warpgroup when the last of them waits for it. Operands are not read before that: if a kernel
overwrites a tile, or registers of A, while a wgmma may still be in flight, the result is computed from the new values.
"""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import ml_dtypes
import numpy as np

from minllm.ptx.descriptor import matrix_chunks, read_matrix
from minllm.sim.arrays import fail
from minllm.sim.asynchrony import asynchronous_view, check_operands
from minllm.sim.thread import current_thread
from minllm.sim.transfer import end_transfer, start_transfer, take_registers

WARPGROUP = 128


class Numbers(NamedTuple):
    """A dtype of wgmma's operands. depth: elements of a row per wgmma; sums: PTX name of the accumulators' type."""

    depth: int
    sums: str
    values: np.ndarray | None  # the value of each bit pattern of an element; None if `floats` computes it


NUMBERS = {
    "bf16": Numbers(16, "f32", None),
    "f16": Numbers(16, "f32", None),
    "e4m3": Numbers(32, "f32", np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)),
    "s8": Numbers(32, "s32", np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)),
}
DTYPE_OF_SUMS = {"f32": np.dtype(np.float32), "s32": np.dtype(np.int32)}


@dataclass(frozen=True)
class Product:
    """One kind of wgmma.mma_async, D [64, n] += A [64, k] B [n, k]^T. dtype: a key of NUMBERS; a_major, b_major: "k" or "mn"."""

    name: str
    n: int
    dtype: str
    a_in_registers: bool
    a_major: str
    b_major: str

    in_lanes: ClassVar[Any] = None  # (lanes, product, *operands): the form for the simulator's lanes, which minllm.ptx.lanes gives

    @property
    def numbers(self) -> Numbers:
        """The Numbers of the operands' dtype."""
        return NUMBERS[self.dtype]

    @property
    def flops(self):
        """FLOPs of one wgmma."""
        return 2 * 64 * self.n * self.numbers.depth


class Call(NamedTuple):
    """One thread's call of a wgmma. transfer: of the operands in shared memory, a Transfer in the warpgroup's first thread or None."""

    product: Product
    operands: tuple
    transfer: Any
    uses: tuple  # a RegisterUse (sim/transfer.py) for each array of registers


def run_groups(threads, pending):
    """Compute all but the newest `pending` wgmma groups of a warpgroup; returns {thread: None}."""
    threads.sort(key=lambda thread: thread.number)
    states = [thread.asynchronous for thread in threads]
    queues = [own.product_groups for own in states]
    if len({len(queue) for queue in queues}) > 1:
        fail("the threads of a warpgroup have committed different numbers of wgmma groups")
    for own in states:
        own.settling = True
    accumulators = {}  # id of the first thread's array -> ([64, n] sums, the arrays of all threads)
    while len(queues[0]) > pending:
        for calls in zip(*(queue.popleft() for queue in queues), strict=True):
            multiply(threads, calls, accumulators)
            end_transfer(calls[0].transfer, threads)
    for matrix, arrays in accumulators.values():
        scatter(matrix, arrays, threads)
    for own in states:
        own.settling = False
    return dict.fromkeys(threads)


def start_reading(product, operands):
    """Report to the monitor, once per warpgroup, the shared memory that a wgmma reads; returns a Transfer or None."""
    thread, (_, a, b, _) = current_thread(), operands
    if thread.block.monitor is None or thread.number % WARPGROUP:
        return None
    transfer = start_transfer(thread, thread.block, "wgmma", "read", operand_chunks(product, None if product.a_in_registers else a, b))
    check_operands(transfer)
    return transfer


def take_operands(product, operands):
    """Report to the monitor the registers that the running thread gives a wgmma; returns RegisterUses."""
    accumulator, a, *_ = operands
    parts = [(accumulator, 0, 2 * product.n, "write")]
    if product.a_in_registers:
        array, at = a
        parts.append((array, at * array.itemsize, 16, "read"))
    return take_registers(current_thread(), *parts)


@functools.lru_cache(maxsize=1024)
def operand_chunks(product, a, b):
    """The chunks of shared memory (addresses / 16) that hold a wgmma's operands, each once; a: None if A is in registers."""
    right = matrix_chunks(b, product.n, product.b_major).reshape(-1)
    return np.unique(right) if a is None else np.union1d(right, matrix_chunks(a, 64, product.a_major))


def multiply(threads, calls, accumulators):
    """Compute one wgmma. calls[i]: the Call of the i-th thread; accumulators: updated with the sums."""
    product, (accumulator, a, b, add) = calls[0][:2]
    same = slice(2, None) if product.a_in_registers else slice(1, None)
    if any(call.product is not product or call.operands[same] != calls[0].operands[same] for call in calls):
        fail(f"the threads of a warpgroup do not all execute the same {product.name} on the same operands")
    block = threads[0].block
    if block.monitor is not None:
        block.monitor.flops(threads[0], product.flops, product.name)
    memory = asynchronous_view(block)
    left = a_from_registers(calls, product, threads) if product.a_in_registers else operand(memory, a, 64, product.a_major, product.dtype)
    right = operand(memory, b, product.n, product.b_major, product.dtype)
    if id(accumulator) not in accumulators:
        arrays = [call.operands[0] for call in calls]
        accumulators[id(accumulator)] = gather(arrays, product, threads) if add else None, arrays
    matrix, arrays = accumulators[id(accumulator)]
    with np.errstate(all="ignore"):
        # In float64 the products and their sum are nearly always exact, so an element does not depend on its position in the matrix.
        summed = (left.astype(np.float64) @ right.astype(np.float64).T).astype(DTYPE_OF_SUMS[product.numbers.sums])
        accumulators[id(accumulator)] = (matrix + summed if add else summed), arrays


def floats(words, dtype):
    """[rows, k] float32: the elements in [rows, 16] uint16, 32 bytes per row."""
    values = NUMBERS[dtype].values
    if values is not None:
        return values[words.view(np.uint8)]
    if dtype == "bf16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return words.view(np.float16).astype(np.float32)


def operand(memory, descriptor, rows, major, dtype):
    """[rows, k] float32: a matrix in shared memory."""
    return floats(read_matrix(memory, descriptor, rows, major), dtype)


def a_from_registers(calls, product, threads):
    """[64, k] float32: A from four words of each of 128 threads."""
    parts = [(*call.operands[1], thread) for call, thread in zip(calls, threads)]
    words = np.stack([a.window(at, 16, alignment=4, thread=thread) for a, at, thread in parts])
    # [warp, g, i, half of the depth, half of the rows, element of a word]
    parts = floats(words.view(np.uint16), product.dtype).reshape(4, 8, 4, 2, 2, -1)
    return parts.transpose(0, 4, 1, 3, 2, 5).reshape(64, product.numbers.depth)


def gather(arrays, product, threads):
    """[64, n] float32 or int32: D from the accumulators of 128 threads."""
    # [warp, g, i, columns / 8, half of the rows, element]
    rows = np.stack([array.window(0, 2 * product.n, alignment=4, thread=thread) for array, thread in zip(arrays, threads)])
    parts = rows.view(DTYPE_OF_SUMS[product.numbers.sums]).reshape(4, 8, 4, product.n // 8, 2, 2)
    return parts.transpose(0, 4, 1, 3, 2, 5).reshape(64, product.n)


def scatter(matrix, arrays, threads):
    """Write D [64, n] back to the accumulators of 128 threads."""
    n = matrix.shape[1]
    parts = matrix.reshape(4, 2, 8, n // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(WARPGROUP, n // 2)
    parts = np.ascontiguousarray(parts).view(np.uint8)
    for array, part, thread in zip(arrays, parts, threads):
        array.window(0, 2 * n, alignment=4, kind="write", thread=thread)[:] = part
