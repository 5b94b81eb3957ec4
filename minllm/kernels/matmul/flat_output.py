"""How a flat product's sums become outputs: added over the parts of K, plus the bias, or SiLU-and-multiply, and written row by row of out.

A tensor core leaves a lane two tokens of one output feature, but neighbours in memory are features of one token. So the sums pass through
shared memory, as float32 [tokens, rows + PADDING]; there too those meet that divided K among themselves. They are added in the order of
their parts of K, always the same, and never by atomics: two runs give the same bits.

Source: N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

from numba import cuda, float32, int32, uint32

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.matmul.fragments import make_store_pair

PADDING = 4  # float32 behind the sums of a token, so that the 32 lanes of a warp write to 32 different banks


def make_keep_sums(rows: int, blocks_n: int):
    """The device function by which a lane lays its sums of 16 rows of weight and 8 * blocks_n tokens into shared memory."""
    stride = rows + PADDING

    @cuda.jit(device=True, forceinline=True)
    def keep_sums(total, at, sums, start, row, lane):
        """sums[start + token * stride + row...] = the fragment of C [16, 8 * blocks_n] from total[at] on."""
        place = uint32(start + (lane & 3) * 2 * stride + row + (lane >> 2))
        for block in range(blocks_n):
            here = uint32(place + block * 8 * stride)
            sums[here], sums[here + 8] = total[at + 4 * block], total[at + 4 * block + 2]
            sums[here + stride], sums[here + stride + 8] = total[at + 4 * block + 1], total[at + 4 * block + 3]

    return keep_sums


def make_write(rows: int, writers: int, dtype: str, gated: bool, paired: bool, added):
    """The device function with which `writers` threads write what `rows` rows of weight come to.

    added(sums, start, place): the device function that adds one sum over the parts of K. gated: the first half of the rows is a gate's, the
    second what it gates. paired: as in make_store_pair.
    """
    columns, stride = rows // 2 if gated else rows, rows + PADDING
    store_pair = make_store_pair(dtype, paired)

    @cuda.jit(device=True, forceinline=True)
    def output(sums, start, place, bias, column):
        """One output: from the sum at `place`, in this column of out."""
        value = added(sums, start, place)
        if gated:
            return value * sigmoid(value) * added(sums, start, place + columns)
        if bias is not None:
            if column < bias.shape[0]:
                return value + float32(bias[column])
        return value

    @cuda.jit(device=True, forceinline=True)
    def write(bias, out, sums, start, first_token, tokens, first_column, writer):
        """out[first_token : + tokens, first_column : + columns]; neighbouring writers write neighbouring pairs."""
        pairs = columns // 2
        item = int32(writer)
        while item < tokens * pairs:
            token, pair = item // pairs, item % pairs
            place, column = uint32(token * stride + 2 * pair), int32(first_column + 2 * pair)
            low, high = output(sums, start, place, bias, column), output(sums, start, place + 1, bias, column + 1)
            store_pair(out, first_token + token, column, low, high)
            item = int32(item + writers)

    return write
