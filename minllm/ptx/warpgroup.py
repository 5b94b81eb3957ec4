"""wgmma: asynchronous matrix multiply-accumulate operations of a warpgroup (128 threads) on Hopper.

A wgmma computes D [64, n] += A [64, k] B [n, k]^T, where k is 32 bytes of a row. It is asynchronous: `wgmma_fence` orders earlier register
accesses before it, `wgmma_commit_group` commits wgmmas as a group, and `wgmma_wait_group_0` (1, 2, ...) waits until at most 0 (1, 2, ...)
groups are in flight. Until then the kernel must not access the accumulator, nor change registers of A or shared memory of A and B. B is
given by a matrix descriptor (descriptor.py), A by a descriptor or in registers. Thread t of a warpgroup, with warp w = t // 32,
g = t % 32 // 4, i = t % 4, holds

    D [64, n]:   n/2 sums: for each 8 columns, from column c on: (16w+g, c+2i), (16w+g, c+2i+1), (16w+g+8, c+2i), (16w+g+8, c+2i+1)
    A [64, k]:   4 words of two 16-bit or four 8-bit elements, as for mma.m16n8k16 and m16n8k32 in rows 16w to 16w+15

If the kernel accesses those registers while a wgmma is in flight, ptxas serialises the wgmmas: the SASS then has a WARPGROUP.DEPBAR after
every HGMMA. PTX ISA, "Asynchronous warpgroup level matrix instructions".
"""

import functools

from llvmlite import ir

from minllm.errors import KernelArgumentError
from minllm.machine.numba_cuda import intrinsic, types
from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated, instruction
from minllm.ptx.warpgroup_product import NUMBERS, WARPGROUP, Call, Product, run_groups, start_reading, take_operands
from minllm.sim.arrays import fail
from minllm.sim.asynchrony import meet, state
from minllm.sim.thread import current_thread
from minllm.sim.transfer import commit

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
SUMS = {"f32": ("f", F32), "s32": ("r", I32)}  # constraint letter and LLVM type of an accumulator's elements


@functools.cache
def make_wgmma(n, dtype="bf16", a="shared", a_major="k", b_major="k"):
    """The function for D [64, n] += A [64, k] B [n, k]^T with A and B of one dtype, n a multiple of 8 up to 256.

    dtype: "bf16" or "f16" (k = 16, D float32), "e4m3" (k = 32, D float32, but the tensor cores of Hopper keep only some 14 bits of its
    fraction while they add) or "s8" (k = 32, D int32, exact). From n = 32 on, s8 takes multiples of 16.

    a "shared":     wgmma(accumulator, a_descriptor, b_descriptor, scale_d)
    a "registers":  wgmma(accumulator, a, a_at, b_descriptor, scale_d), A from the uint32 local array a[a_at:a_at+4]
    accumulator: a local array of n/2 elements of D; with scale_d 0 the product replaces it, else the product is added to it.
    a_major, b_major: "k" if chunks of 16 bytes run along the depth K, "mn" if they run along the rows of A or B, which is not possible
    with 8-bit elements. Raises KernelArgumentError. PTX ISA, "wgmma.mma_async".
    """
    eight_bits, majors = dtype in ("e4m3", "s8"), {a_major, b_major}
    sizes = range(8, 257, 8) if dtype != "s8" else (8, 24, *range(16, 257, 16))
    if dtype not in NUMBERS or n not in sizes or a not in ("shared", "registers") or majors - ({"k"} if eight_bits else {"k", "mn"}):
        raise KernelArgumentError(
            f"no wgmma with n={n}, dtype={dtype!r}, a={a!r}, a_major={a_major!r}, b_major={b_major!r}: n is a multiple of 8 from 8 to 256, "
            "for s8 of 16 from 32 on; dtype bf16, f16, e4m3 or s8; a shared or registers; each major k or, for 16 bits, mn"
        )
    name = f"wgmma_m64n{n}k{NUMBERS[dtype].depth}_{dtype}_{a}_{a_major}_{b_major}"
    product = Product(name, n, dtype, a == "registers", a_major, b_major)
    function = from_registers(product) if a == "registers" else from_shared(product)
    function.emulation.__doc__ = function.__doc__ = make_wgmma.__doc__
    function.emulation.in_lanes = lambda lanes, *operands: Product.in_lanes(lanes, product, *operands)
    function.emulation.in_lanes.by_threads = True
    return function


def start_product(product, *operands):
    """Store the running thread's call of a wgmma until it waits for the group."""
    own = state(current_thread())
    if not own.registers_fenced:
        fail("wgmma without wgmma_fence before it: its registers are not settled")
    own.products.append(Call(product, operands, start_reading(product, operands), take_operands(product, operands)))


def wgmma_text(product, a_operands, b_operand, scale):
    """The instruction's text with numbered operands, the accumulator first."""
    registers = ", ".join(f"${i}" for i in range(product.n // 2))
    sums, depth = product.numbers.sums, product.numbers.depth
    scales = [] if sums == "s32" else [1, 1]
    majors = [int(major == "mn") for major in (product.a_major, product.b_major)][product.a_in_registers :] if depth == 16 else []
    flags = "".join(f", {flag}" for flag in scales + majors)
    text = f"wgmma.mma_async.sync.aligned.m64n{product.n}k{depth}.{sums}.{product.dtype}.{product.dtype}"
    return f"{{ .reg .pred add; setp.ne.b32 add, {scale}, 0; {text} {{{registers}}}, {a_operands}, {b_operand}, add{flags}; }}"


def accumulate(context, builder, signature, arguments, product, text, constraints, operands):
    """Emit the instruction with the accumulator, the n/2 elements of arguments[0], as tied inputs and outputs."""
    count, (letter, element) = product.n // 2, SUMS[product.numbers.sums]
    start = element_pointer(context, builder, signature.args[0], arguments[0], types.int64, I64(0))
    places = [builder.gep(start, [I32(i)]) for i in range(count)]
    tied = [f"={letter}"] * count + [str(i) for i in range(count)] + constraints
    value = assembly(text, tied, ir.LiteralStructType([element] * count), [element] * count + [o.type for o in operands], convergent=True)
    result = call_assembly(builder, value, [builder.load(place) for place in places] + operands, convergent=True)
    for i, place in enumerate(places):
        builder.store(builder.extract_value(result, i), place)
    return context.get_dummy_value()


def from_shared(product):
    """The function for wgmma with A in shared memory."""
    first = product.n  # index of the first operand after n/2 outputs and n/2 tied inputs

    def wgmma(typing_context, accumulator, a_descriptor, b_descriptor, scale_d):
        def lower(context, builder, signature, arguments):
            wanted = (types.uint64, types.uint64, types.uint32)
            operands = [context.cast(builder, *pair) for pair in zip(arguments[1:], signature.args[1:], wanted)]
            text = wgmma_text(product, f"${first}", f"${first + 1}", f"${first + 2}")
            return accumulate(context, builder, signature, arguments, product, text, ["l", "l", "r"], operands)

        return types.void(accumulator, a_descriptor, b_descriptor, scale_d), lower

    def emulation(accumulator, a_descriptor, b_descriptor, scale_d):
        start_product(product, accumulator, int(a_descriptor), int(b_descriptor), bool(scale_d))

    wgmma.__name__ = emulation.__name__ = product.name
    return emulated(intrinsic(wgmma), emulation)


def from_registers(product):
    """The function for wgmma with A in registers."""
    first = product.n

    def wgmma(typing_context, accumulator, a, a_at, b_descriptor, scale_d):
        def lower(context, builder, signature, arguments):
            start = element_pointer(context, builder, signature.args[1], arguments[1], signature.args[2], arguments[2])
            words = [builder.load(builder.gep(start, [I32(i)])) for i in range(4)]
            operands = [context.cast(builder, arguments[i], signature.args[i], t) for i, t in ((3, types.uint64), (4, types.uint32))]
            registers = ", ".join(f"${first + i}" for i in range(4))
            text = wgmma_text(product, f"{{{registers}}}", f"${first + 4}", f"${first + 5}")
            return accumulate(context, builder, signature, arguments, product, text, ["r"] * 4 + ["l", "r"], words + operands)

        return types.void(accumulator, a, a_at, b_descriptor, scale_d), lower

    def emulation(accumulator, a, a_at, b_descriptor, scale_d):
        start_product(product, accumulator, (a, int(a_at)), int(b_descriptor), bool(scale_d))

    wgmma.__name__ = emulation.__name__ = product.name
    return emulated(intrinsic(wgmma), emulation)


def wgmma_fence():
    """wgmma_fence(): order this thread's register accesses before the wgmmas that follow. It is needed before the first wgmma, and again
    after accesses to accumulators or registers of A. PTX ISA, "wgmma.fence"."""
    state(current_thread()).registers_fenced = True


def wgmma_commit_group():
    """wgmma_commit_group(): commit the wgmmas since the warpgroup's last group as a new group. PTX ISA, "wgmma.commit_group"."""
    own = state(current_thread())
    commit(call.transfer for call in own.products)
    own.product_groups.append(own.products)
    own.products = []


def make_wait_group(pending):
    """The function for wgmma.wait_group with `pending` as its literal operand."""

    def wait():
        thread = current_thread()
        own = state(thread)
        if len(own.product_groups) <= pending:
            return
        key = ("wgmma.wait_group", thread.number // WARPGROUP)
        reason = f"wgmma.wait_group {pending} of warpgroup {key[1]}"
        meet(key, WARPGROUP, reason, compute=lambda threads: run_groups(list(threads), pending), orders=False)  # not a barrier
        if pending == 0:
            own.registers_fenced = False

    wait.__name__ = f"wgmma_wait_group_{pending}"
    wait.__doc__ = f"""Wait until at most {pending} groups of this warpgroup's products are in flight. PTX ISA, "wgmma.wait_group"."""
    text = f"wgmma.wait_group.sync.aligned {pending};"
    return instruction(text, emulation=wait, touches_memory=True, convergent=True)


wgmma_fence = instruction("wgmma.fence.sync.aligned;", emulation=wgmma_fence, touches_memory=True, convergent=True)
wgmma_commit_group = instruction("wgmma.commit_group.sync.aligned;", emulation=wgmma_commit_group, touches_memory=True, convergent=True)
wgmma_wait_group_0, wgmma_wait_group_1, wgmma_wait_group_2, wgmma_wait_group_3 = (make_wait_group(pending) for pending in range(4))
