"""Where the tokens of a KV cache lie: no instruction, but what the compiler knows of an array's layout and a kernel's source cannot ask."""

from numba.cuda import types
from numba.cuda.cgutils import unpack_tuple
from numba.cuda.extending import intrinsic

from minllm.ptx.instruction import emulated


def axis_of_tokens(ndim):
    """The axis along which tokens follow each other: 1 of [num_blocks, block_size, kv_heads, head_dim], 0 where the slots are one axis."""
    return max(0, ndim - 3)


def token_stride_emulation(cache, row):
    """token_stride(cache, row): elements from one token of a cache to the next, in the type of `row`, the elements of a token.

    cache: [num_blocks, block_size, kv_heads, head_dim], [slots, kv_heads, head_dim] or [slots, row]. For a C-contiguous one this is `row`
    itself, found when the kernel is compiled: kernels on caches without gaps cost nothing more. For others it comes from the strides.
    """
    return row if cache.data.flags.c_contiguous else cache.strides[axis_of_tokens(cache.ndim)] // cache.itemsize


def token_stride(typing_context, cache, row):
    """The typing function; see the emulation."""

    def lower(context, builder, signature, arguments):
        if cache.layout == "C":
            return arguments[1]
        strides = unpack_tuple(builder, context.make_array(cache)(context, builder, arguments[0]).strides)
        itemsize = context.get_constant(types.int64, context.get_abi_sizeof(context.get_data_type(cache.dtype)))
        return context.cast(builder, builder.sdiv(strides[axis_of_tokens(cache.ndim)], itemsize), types.int64, row)

    return row(cache, row), lower


token_stride_emulation.__name__ = "token_stride"
token_stride = emulated(intrinsic(token_stride), token_stride_emulation)
