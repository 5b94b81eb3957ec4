"""One row of x, or its RMSNorm, in shared memory as the tensor cores' operand B.

It is stored as 16-bit numbers and their sums, or as 8-bit codes and a scale. Every block computes this for itself while its first
codes are in flight, so that neither a norm nor a quantising kernel is launched:

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
from minllm.kernels.quantization.decoder import RowCodes
from minllm.kernels.reduction import block_max, block_sum
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.tiles.warp import ALL_LANES, WARP

WIDTH = 8  # 16-bit numbers per vector
VECTORS_OF_A_STEP = 16  # vectors per step of 128 inputs, four for each lane of a row
PAIR_ORDER = (0, 1, 4, 5, 2, 3, 6, 7)  # order of a vector's numbers: pairs that one mma.sync multiplies are adjacent
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


def make_prepare_numbers(k: int, padded_k: int, threads: int, dtype: str, parts: int, unit: float = 1.0, unit_of_sums: float = 1.0):
    """Return Operand.prepare for 16-bit x: memory = its vectors in reading order, then the sums of parts of steps.

    Numbers are multiplied by `unit`, sums by `unit_of_sums`. The first and the third pair of a vector come before the others.
    Lane t of a row reads vectors 4 t to 4 t + 3 of a step, one after another. The vectors that four lanes read at a time are adjacent, so
    that no two are in the same bank.
    """
    held, load, values_of, inverse_rms = make_row(k, padded_k, threads, dtype)
    store, sums_at, vectors = vector_access(dtype)[2], padded_k // 2, padded_k // WIDTH
    vectors_of_a_part, each, unit_of_values = VECTORS_OF_A_STEP // parts, held // 4, unit_of_sums / unit

    @cuda.jit(device=True, forceinline=True)
    def prepare(x, norm, epsilon, memory):
        words, weights = cuda.local.array(held, uint32), cuda.local.array(held, uint32)
        values, ordered = cuda.local.array(WIDTH, float32), cuda.local.array(WIDTH, float32)
        load(x, norm, words, weights)
        squares = float32(0)
        for i in range(each):
            vector = uint32(uint32(cuda.threadIdx.x) + uint32(i * threads))
            squares += values_of(words, i, norm, weights, values)
            in_step = (vector & uint32(3)) << uint32(2) | vector >> uint32(2) & uint32(3)
            for j in range(WIDTH):
                ordered[j] = values[PAIR_ORDER[j]] * float32(unit)
            if vector < uint32(vectors):
                store(memory, uint32(((vector & uint32(STEP_MASK)) | in_step) << uint32(2)), ordered, 0)  # also rounds `ordered`
            total = float32(0)
            for j in range(WIDTH):
                total += ordered[j] * float32(unit_of_values)
            distance = 1
            while distance < vectors_of_a_part:
                total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
                distance *= 2
            if vector < uint32(vectors) and vector % uint32(vectors_of_a_part) == uint32(0):
                memory[uint32(vector // uint32(vectors_of_a_part) + uint32(sums_at))] = ptx.float_as_uint(total)
        if norm is None:
            cuda.syncthreads()
            return float32(1)
        return inverse_rms(squares, epsilon)  # includes a barrier

    return prepare


def make_prepare_codes(k: int, padded_k: int, threads: int, dtype: str, code: RowCodes):
    """Return Operand.prepare for x in codes: memory = its codes, four per word."""
    held, load, values_of, inverse_rms = make_row(k, padded_k, threads, dtype)
    largest, inverse_largest, each = float(code.largest), 1 / code.largest, held // 4
    word_of, vectors = code.word, padded_k // WIDTH

    @cuda.jit(device=True, forceinline=True)
    def prepare(x, norm, epsilon, memory):
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
