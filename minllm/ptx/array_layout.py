"""The token stride of a KV cache, a constant at compile time if the cache is C-contiguous."""

from minllm.machine.numba_cuda import intrinsic, types, unpack_tuple
from minllm.ptx.instruction import emulated


def axis_of_tokens(ndim):
    """The axis of tokens: 1 for [num_blocks, block_size, kv_heads, head_dim], 0 if one axis holds all slots."""
    return max(0, ndim - 3)


def token_stride_emulation(cache, row):
    """token_stride(cache, row): elements from one token of a cache to the next. row: elements per token; the result has its type.

    cache: [num_blocks, block_size, kv_heads, head_dim], [slots, kv_heads, head_dim] or [slots, row]. For a C-contiguous cache the result
    is `row`, decided at compile time, and costs nothing at run time. Otherwise it is computed from the strides.
    """
    return row if cache.data.flags.c_contiguous else cache.strides[axis_of_tokens(cache.ndim)] // cache.itemsize


def token_stride(typing_context, cache, row):
    """Numba's typing function; the emulation has the docstring."""

    def lower(context, builder, signature, arguments):
        if cache.layout == "C":
            return arguments[1]
        strides = unpack_tuple(builder, context.make_array(cache)(context, builder, arguments[0]).strides)
        itemsize = context.get_constant(types.int64, context.get_abi_sizeof(context.get_data_type(cache.dtype)))
        return context.cast(builder, builder.sdiv(strides[axis_of_tokens(cache.ndim)], itemsize), types.int64, row)

    return row(cache, row), lower


token_stride_emulation.__name__ = "token_stride"
token_stride = emulated(intrinsic(token_stride), token_stride_emulation)
