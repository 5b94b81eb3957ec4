"""One row of x, or its RMSNorm, in shared memory: as 16-bit numbers and their sums (x.py), or as 8-bit codes and a scale.

Every block computes this for itself while its first codes are in flight, so that neither a norm nor a quantising kernel is launched:

    y = x * norm, or x                                          16 bits
    scale = max |y| / largest, code = round(y / scale)          largest: 127 (int8), 448 (fp8)
    factor = 1 / sqrt(mean(x**2) + epsilon), or 1

The final sums are multiplied by factor (and scale), as in DeferredNorm (flat/deferred_norm.py). So the block writes y without waiting for
the sum of squares, and codes do not depend on it.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4; kernels/quantization/int8.py and fp8.py for the codes.
"""

from numba import cuda, float32, uint32
from numba.cuda import libdevice

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import TensorCoreGemvTiling
from minllm.kernels.matmul.quantized.tensor_core_gemv.x import VECTORS, WIDTH, first_sum
from minllm.kernels.quantization.decoder import INPUTS, PACK, ROW_BYTES, MmaDecoder, RowCodes
from minllm.kernels.reduction import block_max, block_sum
from minllm.kernels.vector import load_words, vector_unpack
from minllm.tiles.warp import ALL_LANES, WARP

STEP_MASK = 0xFFFFFFF0  # bits of a vector's number that select its step


def make_row(k: int, padded_k: int, threads: int, dtype: str):
    """Return (words, load, values_of, inverse_rms): the number of a thread's words of a row, and device functions.

    The words include the padding, which is zeros.
    """
    vectors, each = k // WIDTH, ceil_div(padded_k // WIDTH, threads)
    unpack, words_of_each = vector_unpack(dtype), 4 * each

    @cuda.jit(device=True, forceinline=True)
    def load_vectors(array, words):
        for i in range(each):
            vector = uint32(uint32(cuda.threadIdx.x) + uint32(i * threads))
            for word in range(4):
                words[4 * i + word] = uint32(0)
            if vector < uint32(vectors):
                load_words(array, uint32(vector * uint32(WIDTH)), words, 4 * i)

    @cuda.jit(device=True, forceinline=True)
    def load(x, norm, words, weights):
        """words = the thread's vectors of x, after the kernels that write it have ended; weights = those of the norm, if given."""
        if norm is not None:
            load_vectors(norm, weights)
        ptx.griddepcontrol_wait()
        load_vectors(x, words)

    @cuda.jit(device=True, forceinline=True)
    def values_of(words, i, norm, weights, values):
        """values[0 : 8] = the thread's i-th vector, times the norm's; return the sum of squares of x, or 0 without a norm."""
        squares, factors = float32(0), cuda.local.array(WIDTH, float32)
        unpack(words, 4 * i, values, 0)
        if norm is not None:
            unpack(weights, 4 * i, factors, 0)
            for j in range(WIDTH):
                squares += values[j] * values[j]
                values[j] *= factors[j]
        return squares

    @cuda.jit(device=True, forceinline=True)
    def inverse_rms(squares, epsilon):
        """Return 1 / RMS of the row, from the threads' sums of squares; all threads of the block must call it."""
        return libdevice.rsqrtf(block_sum(squares, cuda.shared.array(WARP, float32)) / float32(k) + epsilon)

    return words_of_each, load, values_of, inverse_rms


def make_prepare_numbers(tiling: TensorCoreGemvTiling, decoder: MmaDecoder, k: int, dtype: str):
    """prepare(x, norm, epsilon, rank, memory): write y as 16-bit numbers with the sums of groups, and return `factor`; rank: 0.

    A lane reads the 16-byte vectors 4 t to 4 t + 3 of a step, one after another. Those that four lanes read at a time are adjacent, so that
    no two are in the same bank.
    """
    steps, threads = k // INPUTS, tiling.threads
    held, load, values_of, inverse_rms = make_row(k, tiling.padded_steps(steps) * INPUTS, threads, dtype)
    vectors, vectors_of_a_group, each = tiling.padded_steps(steps) * VECTORS, VECTORS // decoder.groups, held // 4
    unpack, pack, pair_of_x, unit, sums_at = (
        vector_unpack(dtype),
        PACK[dtype],
        decoder.pair_of_x,
        decoder.unit_of_sums,
        first_sum(tiling, steps),
    )

    @cuda.jit(device=True, forceinline=True)
    def store_sum(packed, vector, memory):
        """Store the sum of a group, whose vectors neighbouring lanes hold, times the decoder's unit of sums."""
        values, total, distance = cuda.local.array(WIDTH, float32), float32(0), 1
        unpack(packed, 0, values, 0)
        for j in range(WIDTH):
            total += values[j]
        while distance < vectors_of_a_group:
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
            distance *= 2
        if vector < uint32(vectors) and vector % uint32(vectors_of_a_group) == uint32(0):
            memory[uint32(vector // uint32(vectors_of_a_group) + uint32(sums_at))] = ptx.float_as_uint(total * float32(unit))

    @cuda.jit(device=True, forceinline=True)
    def prepare(x, norm, epsilon, rank, memory):
        words, weights = cuda.local.array(held, uint32), cuda.local.array(held, uint32)
        values, packed = cuda.local.array(WIDTH, float32), cuda.local.array(4, uint32)
        load(x, norm, words, weights)
        squares = float32(0)
        for i in range(each):
            vector = uint32(uint32(cuda.threadIdx.x) + uint32(i * threads))
            squares += values_of(words, i, norm, weights, values)
            for j in range(4):
                packed[j] = pack(values[2 * j], values[2 * j + 1])
            if unit > 0:
                store_sum(packed, vector, memory)
            place = uint32(
                ((vector & uint32(STEP_MASK)) | (vector & uint32(3)) << uint32(2) | vector >> uint32(2) & uint32(3)) << uint32(2)
            )
            if vector < uint32(vectors):
                one, two, three, four = packed[0], packed[1], packed[2], packed[3]
                ptx.store_128(memory, place, pair_of_x(one, 0), pair_of_x(two, 1), pair_of_x(three, 2), pair_of_x(four, 3))
        if norm is None:
            cuda.syncthreads()
            return float32(1)
        return inverse_rms(squares, epsilon)  # includes a barrier

    return prepare


def make_prepare_codes(tiling: TensorCoreGemvTiling, code: RowCodes, k: int, dtype: str):
    """prepare(x, norm, epsilon, rank, memory): write y as codes, four per word, and return factor times scale; rank: 0."""
    padded_k, threads = tiling.padded_steps(k // ROW_BYTES) * ROW_BYTES, tiling.threads
    held, load, values_of, inverse_rms = make_row(k, padded_k, threads, dtype)
    largest, inverse_largest, each = float(code.largest), 1 / code.largest, held // 4
    word_of, vectors = code.word, padded_k // WIDTH

    @cuda.jit(device=True, forceinline=True)
    def prepare(x, norm, epsilon, rank, memory):
        words, weights, values = cuda.local.array(held, uint32), cuda.local.array(held, uint32), cuda.local.array(WIDTH, float32)
        load(x, norm, words, weights)
        top, squares = float32(0), float32(0)
        for i in range(each):
            squares += values_of(words, i, norm, weights, values)
            for j in range(WIDTH):
                top = max(top, abs(values[j]))
        scale = block_max(top, cuda.shared.array(WARP, float32)) * float32(inverse_largest)
        inverse = ptx.rcp_rn(scale) if scale > float32(0) else float32(0)
        for i in range(each):
            vector = uint32(uint32(cuda.threadIdx.x) + uint32(i * threads))
            values_of(words, i, norm, weights, values)
            for j in range(WIDTH):
                values[j] = min(max(values[j] * inverse, float32(-largest)), float32(largest))
            if vector < uint32(vectors):
                ptx.store_64(memory, uint32(vector << uint32(1)), word_of(values, 0), word_of(values, 4))
        if norm is None:
            cuda.syncthreads()
            return scale
        return scale * inverse_rms(squares, epsilon)

    return prepare
