"""wgmma of whole warpgroups: one product of matrices for 128 lanes, computed when they wait for its group, as that of threads is."""

import numpy as np

from minllm.ptx import warpgroup
from minllm.ptx.lanes.form import in_lanes
from minllm.ptx.warpgroup_product import DTYPE_OF_SUMS, WARPGROUP, Product, floats, operand, operand_chunks
from minllm.sim.asynchrony import asynchronous_view, check_operands
from minllm.sim.lanes.faults import Fault, NotInLanes
from minllm.sim.lanes.masks import VECTOR
from minllm.sim.thread import current_thread
from minllm.sim.transfer import end_transfer, start_transfer


class Products:
    """The wgmmas of a warpgroup that are in flight. fenced: whether its registers are settled."""

    def __init__(self):
        self.open, self.groups, self.fenced = [], [], False

    @property
    def under_way(self):
        """Whether wgmmas have started and nobody has waited for them."""
        return bool(self.open or self.groups)


class Call:
    """A wgmma of the lanes `part`, a slice. a, b: descriptors, a None if in registers; sums, left: its registers, [128, number]."""

    def __init__(self, product, part, registers, a, b, add, transfer):
        self.product, self.part, self.registers, self.a, self.b, self.add, self.transfer = product, part, registers, a, b, add, transfer

    @property
    def sums(self):
        """The accumulators, [128, n / 2], a view of the lanes' registers."""
        return rows_of(*self.registers[0], self.part)

    def left(self, memory):
        """A, [64, k]."""
        if self.a is not None:
            return operand(memory, self.a, 64, self.product.a_major, self.product.dtype)
        words = np.ascontiguousarray(rows_of(*self.registers[1], self.part))
        parts = floats(words.view(np.uint16), self.product.dtype).reshape(4, 8, 4, 2, 2, -1)
        return parts.transpose(0, 4, 1, 3, 2, 5).reshape(64, self.product.numbers.depth)

    def multiplied(self, memory):
        """A B^T, rounded to the type of the sums."""
        right = operand(memory, self.b, self.product.n, self.product.b_major, self.product.dtype)
        return (self.left(memory).astype(np.float64) @ right.astype(np.float64).T).astype(DTYPE_OF_SUMS[self.product.numbers.sums])


def rows_of(root, first, count, part):
    """`count` elements of a local array of each lane of a slice, [lanes, count]."""
    return root.flat.T[part, first : first + count]


def warpgroups(lanes):
    """[(slice of its lanes, its Products)] of the warpgroups of the mask."""
    return [(part, lanes.block.products.setdefault(int(lanes.number[part.start]) // WARPGROUP, Products())) for part in lanes.warpgroups()]


def uniform(value, part):
    """An operand that is the same for all lanes of a warpgroup."""
    if type(value) is not VECTOR:
        return int(value)
    if (value[part] != value[part.start]).any():
        raise Fault("the threads of a warpgroup give one wgmma different operands")
    return int(value[part.start])


def registers_of(array, first, count):
    """(root, first element, count) of elements of a local array."""
    if not array.local or type(array.offset) is VECTOR or not array.contiguous:
        raise NotInLanes("registers of wgmma in a part of an array")
    if not 0 <= first <= array.size - count or array.itemsize != 4:
        raise Fault("registers of wgmma are out of bounds")
    return array.root, array.offset + first, count


def wgmma(lanes, product, accumulator, *operands):
    """Store a wgmma of each warpgroup of the mask until it waits for the group."""
    *left, b, add = operands
    for part, own in warpgroups(lanes):
        if not own.fenced:
            raise Fault("wgmma without wgmma_fence before it")
        registers = [registers_of(accumulator, 0, product.n // 2)]
        if product.a_in_registers:
            registers.append(registers_of(left[0], uniform(left[1], part), 4))
        a = None if product.a_in_registers else uniform(left[0], part)
        at, transfer = uniform(b, part), None
        if lanes.watch is not None:
            transfer = lanes.run_as(lanes.members[part.start], start_reading, operand_chunks(product, a, at))
        call = Call(product, part, registers, a, at, bool(uniform(add, part)), transfer)
        if lanes.watch is not None:
            lanes.watch.take_registers(call)
        own.open.append(call)


def start_reading(chunks):
    """The Transfer of a wgmma's operands in shared memory, in the running thread."""
    transfer = start_transfer(current_thread(), current_thread().block, "wgmma", "read", chunks)
    check_operands(transfer)
    return transfer


def compute(lanes, own, pending):
    """Compute all but the newest `pending` groups of a warpgroup."""
    memory, accumulators = asynchronous_view(lanes.block), {}
    while len(own.groups) > pending:
        for call in own.groups.pop(0):
            key = call.registers[0][:2]
            if lanes.tracer is not None:
                lanes.tracer.tensor_flops(lanes, lanes.warp_of[call.part.start :][:1], call.product.name, call.product.flops)
            first = key not in accumulators
            if lanes.watch is not None:
                lanes.watch.compare_written(call.part, call.registers[not (first and call.add) :])
                lanes.watch.give_registers(call)
            before = accumulators[key][0] if not first else gathered(call.sums, call.product) if call.add else None
            summed = call.multiplied(memory)
            accumulators[key] = (before + summed if call.add else summed), call
            end_transfer(call.transfer, lanes.members[call.part])
    for matrix, call in accumulators.values():
        scatter(matrix, call.sums)


def gathered(rows, product):
    """D [64, n] of the accumulators of 128 lanes."""
    parts = np.ascontiguousarray(rows).view(DTYPE_OF_SUMS[product.numbers.sums]).reshape(4, 8, 4, product.n // 8, 2, 2)
    return parts.transpose(0, 4, 1, 3, 2, 5).reshape(64, product.n)


def scatter(matrix, rows):
    """Write D [64, n] to the accumulators of 128 lanes."""
    parts = matrix.reshape(4, 2, 8, matrix.shape[1] // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(WARPGROUP, -1)
    rows[...] = np.ascontiguousarray(parts).view(rows.dtype)


@in_lanes(warpgroup.wgmma_fence, threads=True)
def wgmma_fence(lanes):
    """Settle the registers of the warpgroups of the mask."""
    for _, own in warpgroups(lanes):
        own.fenced = True


@in_lanes(warpgroup.wgmma_commit_group, threads=True)
def wgmma_commit_group(lanes):
    """Commit the wgmmas since the last group as a new group."""
    for _, own in warpgroups(lanes):
        for call in own.open:
            if call.transfer is not None:
                call.transfer.committed = True
        own.groups.append(own.open)
        own.open = []


def make_wait_group(pending):
    """The form of wgmma.wait_group."""

    def wait(lanes):
        for _, own in warpgroups(lanes):
            if len(own.groups) > pending:
                compute(lanes, own, pending)
                own.fenced = own.fenced and pending > 0

    return wait


for _pending in range(4):
    in_lanes(getattr(warpgroup, f"wgmma_wait_group_{_pending}"), threads=True)(make_wait_group(_pending))
Product.in_lanes = staticmethod(wgmma)
