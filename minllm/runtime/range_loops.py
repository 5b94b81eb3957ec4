"""`for i in range(n)` in a shape that every compiler generation can unroll.

Numba asks a range for its next number in two steps: a branch around "take one off the count and move on", and after it a second branch, on
the same condition, into or out of the loop. The optimiser for GPUs up to Hopper threads the first branch into the second. The one
for Blackwell (compute capability 10.0 and later) does not, because threads of a warp may diverge there; many loops then stay loops, and
a local array that is indexed by their variable stays in memory instead of registers.

Here the first branch is left out: count and number move on in any case. After the last round nobody looks at them again.

Importing this module replaces the rule in Numba's registry, for kernels of any origin in this process.
"""

from numba.cuda.core.imputils import RefType, iternext_impl
from numba.cuda.cpython import rangeobj


def register(number, iterator):
    """Replace the rule for ranges of one type of number; the iterator holds pointers to the next number and to how many are left."""

    @rangeobj.registry.lower("iternext", iterator)
    @iternext_impl(RefType.BORROWED)
    def next_number(context, builder, signature, arguments, result):
        state = rangeobj.make_range_iterator(iterator)(context, builder, arguments[0])
        count, value = builder.load(state.count), builder.load(state.iter)
        result.set_valid(builder.icmp_signed(">", count, context.get_constant(number, 0)))
        result.yield_(value)
        builder.store(builder.sub(count, context.get_constant(number, 1), flags=["nsw"]), state.count)
        builder.store(builder.add(value, state.step), state.iter)


for number_type, (_, iterator_type) in rangeobj.range_impl_map.items():
    register(number_type, iterator_type)
