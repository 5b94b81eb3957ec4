"""Lowers `for i in range(n)` to a form that all optimisers can unroll.

Numba's code for the next number of a range has two branches on the same condition: one around "decrement the count, advance the number",
then one into or out of the loop. The optimiser for GPUs up to Hopper threads the first branch into the second (jump threading). The one for
Blackwell (compute capability 10.0 and later) does not, because threads of a warp may diverge there. Many loops are then not unrolled, and
a local array indexed by the loop variable stays in local memory instead of registers.

The code here does without the first branch: it always advances count and number, which are not used after the last iteration.

Importing this module replaces the lowering in Numba's registry, for all kernels of this process.
"""

from numba.cuda.core.imputils import RefType, iternext_impl
from numba.cuda.cpython import rangeobj


def register(number, iterator):
    """Replace Numba's lowering of `iternext` for ranges of one integer type."""

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
