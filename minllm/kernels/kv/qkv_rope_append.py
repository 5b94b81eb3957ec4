"""One step from the fused QKV projection to attention: split, QK norm, RoPE, and the append to the cache.

    q, k, v = split(qkv)
    q, k    = rms_norm(q) * q_norm, rms_norm(k) * k_norm        per head, if the model has these norms (Qwen3)
    q, k    = rope(q, position), rope(k, position)              if the model has rotary positions
    key_cache[slot], value_cache[slot] = k, v                   query = q

T tokens of N = heads + 2 kv_heads heads of D components of b bytes: about 7 FLOPs per element of q and k; T N D b bytes read and as
many written, plus T D * 4 bytes of the table and 2 D b of the norms, which each head loads again from L2 (in the vector kernel each
thread loads its part of the table once for its one or two heads); arithmetic intensity about 3 / b (1.5 FLOPs per byte in bf16), so it
is memory-bound. Five separate kernels would move queries and keys three more times, and each would cost a launch, which matters at one
token.

`qkv_rope_append_vector.py` holds the kernel for heads with halves of whole 16-byte vectors, as in almost every model; the kernel in this
file takes any head. One warp per head, four heads per block. A lane holds pairs of components 32 apart, and both components of a pair: the
norm is then one warp-wide sum, and the rotation needs no shuffle.
Sources: Su et al. 2021, "RoFormer"; the Qwen team 2025, "Qwen3 Technical Report", section 2 (QK norm); vLLM's slot mapping.
"""

import functools

import numpy as np
from numba import cuda, float32, uint32
from numba.cuda import libdevice

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.kv.layout import by_slot, check_caches
from minllm.kernels.kv.qkv_rope_append_quantized import qkv_rope_append_quantized
from minllm.kernels.kv.qkv_rope_append_vector import launch_vectors, serves
from minllm.kernels.kv.reference import append_reference
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.kernels.quantization.cache import is_quantized
from minllm.kernels.rope.reference import rope_reference
from minllm.kernels.rope.rotate import check_cos_sin, vectors_of_half_a_head
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP, warp_sum

HEADS_PER_BLOCK = 4


def qkv_rope_append_reference(
    qkv,
    positions,
    slot_mapping,
    key_cache,
    value_cache,
    heads,
    kv_heads,
    cos_sin=None,
    interleaved=False,
    q_norm=None,
    k_norm=None,
    epsilon=1e-6,
    recent=None,
):
    """Split qkv, normalise and rotate its queries and keys, write keys and values into the cache, return the queries.

    qkv: [T, (heads + 2 * kv_heads) * head_dim], queries first, then keys, then values. q_norm, k_norm: [head_dim] weights of an RMSNorm
    over each head (Qwen3), or None. cos_sin: see `rope_table`; None leaves positions out (GPT-2). Caches and slots as in
    `append_reference`. recent: (key_cache, value_cache, slot_mapping) of plain caches that hold the tokens in addition to QuantizedCaches,
    with the same smoothing but not quantised. Everything between load and store is float32, rounded once. Returns the queries, [T, heads,
    head_dim], in the dtype of qkv.
    """
    tokens = qkv.shape[0]
    by_head = qkv.reshape(tokens, heads + 2 * kv_heads, -1)  # [T, heads + 2 * kv_heads, head_dim]
    wide = np.result_type(qkv.dtype, np.float32)
    query, key = by_head[:, :heads].astype(wide, copy=False), by_head[:, heads : heads + kv_heads].astype(wide, copy=False)
    if q_norm is not None:
        query, _ = rms_norm_reference(query, q_norm, epsilon)
    if k_norm is not None:
        key, _ = rms_norm_reference(key, k_norm, epsilon)
    if cos_sin is not None:
        query, key = rope_reference(query, positions, cos_sin, interleaved), rope_reference(key, positions, cos_sin, interleaved)
    value = by_head[:, heads + kv_heads :]
    append_reference(key, value, key_cache, value_cache, slot_mapping)
    if recent is not None:
        append_reference(key_cache.smoothed(key), value, *recent)
    if is_quantized(key_cache) and key_cache.smoothing is not None:
        query = query * np.repeat(key_cache.smoothing[2], heads // kv_heads, axis=0)
    return query.astype(qkv.dtype, copy=False)


@functools.cache
def qkv_rope_append_kernel(head_dim, rotary_dim, interleaved, has_norm):
    """The kernel for one head shape; rotary_dim 0 leaves positions out."""
    half = rotary_dim // 2
    rounds = ceil_div(ceil_div(head_dim, 2), WARP)  # pairs per lane; the last pair has one component if head_dim is odd

    @cuda.jit(device=True)
    def components(pair):
        """The two components of a pair; beyond rotary_dim, where nothing rotates, neighbours form a pair."""
        if pair < half and not interleaved:
            return pair, pair + half
        return 2 * pair, 2 * pair + 1

    @cuda.jit(device=True)
    def load_pairs(row, start, lane, a, b):
        """Load this lane's pairs of row[start : start + head_dim]; 0 beyond the head."""
        for r in range(rounds):
            first, second = components(r * WARP + lane)
            a[r] = float32(row[start + first]) if first < head_dim else float32(0)
            b[r] = float32(row[start + second]) if second < head_dim else float32(0)

    @cuda.jit(device=True)
    def load_turn(angles, lane, cosine, sine):
        """Load the cosine and sine of each of this lane's pairs; beyond rotary_dim 1 and 0."""
        for r in range(rounds):
            pair = r * WARP + lane
            cosine[r] = angles[pair] if pair < half else float32(1)
            sine[r] = angles[half + pair] if pair < half else float32(0)

    @cuda.jit(device=True)
    def normalize(a, b, weight, lane, epsilon):
        """RMSNorm over the warp's head."""
        a_weight, b_weight = cuda.local.array(rounds, float32), cuda.local.array(rounds, float32)
        load_pairs(weight, 0, lane, a_weight, b_weight)
        sum_of_squares = float32(0)
        for r in range(rounds):
            sum_of_squares += a[r] * a[r] + b[r] * b[r]
        inverse_rms = libdevice.rsqrtf(warp_sum(sum_of_squares) * float32(1 / head_dim) + epsilon)
        for r in range(rounds):
            a[r] *= inverse_rms * a_weight[r]
            b[r] *= inverse_rms * b_weight[r]

    @cuda.jit(device=True)
    def store_pairs(row, lane, a, b):
        """Write this lane's pairs into row[:head_dim]."""
        for r in range(rounds):
            first, second = components(r * WARP + lane)
            if first < head_dim:
                row[first] = a[r]
            if second < head_dim:
                row[second] = b[r]

    @kernel(dependent_launch=True)
    def qkv_rope_append_kernel(qkv, positions, slot_mapping, cos_sin, q_norm, k_norm, query, key_cache, value_cache, epsilon):
        # qkv [T, (heads + 2 * kv_heads) * head_dim], positions, slot_mapping [T], cos_sin [positions, rotary_dim],
        # q_norm, k_norm [head_dim], query [T, heads, head_dim], caches [slots, kv_heads, head_dim].
        # Unsigned indices: a signed index costs extra instructions to wrap negative values around.
        wait_for_predecessors()
        token, lane = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x) & (WARP - 1)
        head = uint32(cuda.blockIdx.y) * HEADS_PER_BLOCK + uint32(cuda.threadIdx.y)
        heads, kv_heads = query.shape[1], key_cache.shape[1]
        if head >= heads + 2 * kv_heads:
            return
        # All loads come first, so that a single token waits for memory twice (for the position, then for its angles), not four times.
        position, slot = positions[token], slot_mapping[token]
        a, b = cuda.local.array(rounds, float32), cuda.local.array(rounds, float32)
        load_pairs(qkv[token], head * head_dim, lane, a, b)
        is_value = head >= heads + kv_heads
        if not is_value:
            if rotary_dim:
                cosine, sine = cuda.local.array(rounds, float32), cuda.local.array(rounds, float32)
                load_turn(cos_sin[uint32(position)], lane, cosine, sine)
            if has_norm:
                if head < heads:
                    normalize(a, b, q_norm, lane, epsilon)
                else:
                    normalize(a, b, k_norm, lane, epsilon)
            if rotary_dim:
                for r in range(rounds):
                    a[r], b[r] = a[r] * cosine[r] - b[r] * sine[r], b[r] * cosine[r] + a[r] * sine[r]
        if head < heads:
            store_pairs(query[token, head], lane, a, b)
        elif slot >= 0:
            if is_value:
                store_pairs(value_cache[uint32(slot), uint32(head - heads - kv_heads)], lane, a, b)
            else:
                store_pairs(key_cache[uint32(slot), uint32(head - heads)], lane, a, b)

    return qkv_rope_append_kernel


def qkv_rope_append(
    qkv, positions, slot_mapping, key_cache, value_cache, query,
    cos_sin=None, interleaved=False, q_norm=None, k_norm=None, epsilon=1e-6, recent=None, stream=None,
):  # fmt: skip
    """Write queries into `query` [T, heads, head_dim], and keys and values into the caches; arguments as in `qkv_rope_append_reference`.

    heads and head_dim are those of `query`, kv_heads that of the caches. One dtype, except for the float32 table and the int32 positions
    and slots. These must be inside the table and the cache; the kernel does not check them. QuantizedCaches go to
    qkv_rope_append_quantized.py. Raises KernelArgumentError for shapes and dtypes.
    """
    check_array("query", query, FLOAT_DTYPES, tokens=None, heads=None, head_dim=None)
    (tokens, heads, head_dim), dtype = query.shape, query.dtype
    quantized = is_quantized(key_cache) or is_quantized(value_cache)
    if not quantized:
        check_caches(key_cache, value_cache, dtype, None, head_dim)
    kv_heads = key_cache.shape[2]
    check_array("qkv", qkv, (dtype,), tokens=tokens, columns=(heads + 2 * kv_heads) * head_dim)
    check_array("positions", positions, INDEX_DTYPES, tokens=tokens)
    check_array("slot_mapping", slot_mapping, INDEX_DTYPES, tokens=tokens)
    check((q_norm is None) == (k_norm is None), "q_norm and k_norm come together: give both or neither")
    if cos_sin is not None:
        check_cos_sin(cos_sin, head_dim)
    has_norm, rotary_dim = q_norm is not None, 0
    if has_norm:
        check_array("q_norm", q_norm, (dtype,), head_dim=head_dim)
        check_array("k_norm", k_norm, (dtype,), head_dim=head_dim)
    if quantized:
        qkv_rope_append_quantized(
            qkv, positions, slot_mapping, key_cache, value_cache, query, cos_sin, interleaved, q_norm, k_norm, epsilon, recent, stream
        )
        return
    check(recent is None, "recent tokens are kept beside quantised caches; these keep all tokens as they are")
    if not has_norm:  # a kernel's arguments are always arrays: these are not read
        q_norm = k_norm = qkv
    if cos_sin is not None:
        rotary_dim = cos_sin.shape[1]
    else:
        cos_sin = qkv
    arrays = (qkv, positions, slot_mapping, cos_sin, q_norm, k_norm, query, by_slot(key_cache), by_slot(value_cache))
    operands = (qkv, query, key_cache, value_cache, q_norm, k_norm)
    rotated = rotary_dim or head_dim  # without rotation, pairs half a head apart serve as well
    vectors = vectors_of_half_a_head(head_dim, rotated, interleaved, cos_sin, *operands)
    if serves(vectors, has_norm):
        launch_vectors(vectors, arrays, epsilon, rotary_dim > 0, has_norm, stream)
        return
    grid = (tokens, ceil_div(heads + 2 * kv_heads, HEADS_PER_BLOCK))
    chosen = qkv_rope_append_kernel(head_dim, rotary_dim, bool(interleaved), has_norm)
    launch(chosen, grid, (WARP, HEADS_PER_BLOCK), (*arrays, float(epsilon)), stream)
