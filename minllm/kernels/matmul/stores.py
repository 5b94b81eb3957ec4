"""How two neighbouring float32 outputs of a row are stored: as one word of two 16-bit elements if they can be, else one by one."""

from numba import cuda

from minllm import ptx

PACK = {"bfloat16": ptx.pack_bf16x2, "float16": ptx.pack_f16x2}


def make_store_pair(dtype: str, paired: bool):
    """The device function that stores two neighbouring outputs; `paired` where they are of `dtype` and share an aligned word."""
    pack = PACK[dtype]

    @cuda.jit(device=True)
    def store_pair(out, row, column, low, high):
        if row < out.shape[0] and column < out.shape[1]:
            if paired:
                ptx.store_32(out, row * out.shape[1] + column, pack(low, high))
            else:
                out[row, column] = low
                if column + 1 < out.shape[1]:
                    out[row, column + 1] = high

    return store_pair
