"""Fused step from the QKV projection to a quantised cache: split, QK norm, RoPE, quantisation.

    q, k, v = split(qkv);  q, k = rms_norm(q) * q_norm, rms_norm(k) * k_norm;  q, k = rope(q), rope(k)      as in qkv_rope_append.py
    codes, scales = quantize((k - mean) * factor), quantize(v)           query = q / factor
    recent_key[recent_slot], recent_value[recent_slot] = (k - mean) * factor, v       with a residual window, in full precision

T tokens of N = heads + 2 kv_heads heads of D components of b bytes: about 7 FLOPs per element of q and k and 6 per element of k and v;
T N D b bytes read; T heads D b written as queries, 2 T kv_heads bytes_per_head (formats.py) to the cache, and with a residual window
2 T kv_heads D b as recent tokens; memory-bound. Nothing is rounded between the projection and the codes: keys are quantised from float32.
Threads to data: as in quantized_head.py, eight components per lane. A component's partner in its RoPE pair lies half a head away, in
another lane: one shuffle per component.
Sources: those of qkv_rope_append.py and append_quantized.py.
"""

import functools

from numba import cuda, float32, int64, uint32
from numba.cuda import libdevice

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.kv.layout import by_slot
from minllm.kernels.kv.qkv_rope_append_vector import launch_vectors, serves
from minllm.kernels.kv.quantized_arguments import check_aligned, check_by_token, check_quantized_caches
from minllm.kernels.kv.quantized_head import lanes_of, make_store_quantized, smooth, unsmooth
from minllm.kernels.quantization.lanes import EACH, make_load_each
from minllm.kernels.rope.rotate import vectors_of_half_a_head
from minllm.kernels.vector import load_4_float32, vector_access
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import ALL_LANES, WARP

THREADS = 128


@functools.cache
def qkv_rope_append_quantized_kernel(dtype, kv_format, block_size, has_positions, has_norm, is_smooth, keeps_recent=False):
    """The kernel for activations of `dtype` and caches of `kv_format`; grid (tokens, blocks of heads)."""
    head_dim, lanes = kv_format.head_dim, lanes_of(kv_format.head_dim)
    active, half_lanes, half = head_dim // EACH, head_dim // EACH // 2, head_dim // 2
    width, _, store_vector = vector_access(dtype)
    load_components, store_quantized = make_load_each(dtype), make_store_quantized(kv_format, block_size)

    @cuda.jit(device=True)
    def normalize(values, weight, component, lane, epsilon, is_rotated):
        """RMSNorm over the head, times weight [head_dim], if the head is a query or a key; the whole warp must call it."""
        total = float32(0)
        for k in range(EACH):
            total += values[k] * values[k]
        if lane >= active:  # its components repeat the last lane's, which counts them
            total = float32(0)
        distance = lanes >> 1
        while distance:
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
            distance >>= 1
        inverse_rms = libdevice.rsqrtf(total * float32(1 / head_dim) + epsilon)
        if is_rotated:
            weights = cuda.local.array(EACH, float32)
            load_components(weight, component, weights)
            for k in range(EACH):
                values[k] *= inverse_rms * weights[k]

    @cuda.jit(device=True)
    def rotate(values, cos_sin, position, lane, is_rotated):
        """(a, b) -> (a cos - b sin, b cos + a sin) for pairs half a head apart, if the head is a query or a key.

        The whole warp must call it.
        """
        own = min(lane, uint32(active - 1))  # lanes beyond the head hold its last components and rotate them as the owning lane does
        first_half = own < half_lanes
        partner = own + half_lanes if first_half else own - half_lanes
        pair = (own if first_half else own - half_lanes) * EACH
        cosine, sine = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        for k in range(EACH):
            cosine[k], sine[k] = float32(1), float32(0)
        if is_rotated:
            for k in range(0, EACH, 4):
                load_4_float32(cos_sin, position * head_dim + pair + k, cosine, k)
                load_4_float32(cos_sin, position * head_dim + half + pair + k, sine, k)
        source = cuda.threadIdx.x % WARP - lane + partner  # within the warp
        for k in range(EACH):
            other = cuda.shfl_sync(ALL_LANES, values[k], source)
            values[k] = values[k] * cosine[k] + (-other if first_half else other) * sine[k]

    @kernel(dependent_launch=True)
    def qkv_rope_append_quantized_kernel(
        qkv,  # [T, (heads + 2 * kv_heads) * head_dim]
        positions,  # [T]
        slot_mapping,  # [T]
        cos_sin,  # [positions, head_dim]
        q_norm,  # [head_dim]
        k_norm,  # [head_dim]
        query,  # [T, heads, head_dim]
        key_codes,  # [num_blocks, kv_heads, block_size, code_bytes]
        key_scales,  # [num_blocks, kv_heads, block_size, groups, 2], or [kv_heads]
        smoothing,  # [3, kv_heads, head_dim]
        value_codes,
        value_scales,
        recent_key,  # [slots, kv_heads, head_dim]
        recent_value,
        recent_slots,  # [T]
        epsilon,
    ):
        wait_for_predecessors()
        token, lane = cuda.blockIdx.x, cuda.threadIdx.x % uint32(lanes)
        head = cuda.blockIdx.y * uint32(THREADS // lanes) + cuda.threadIdx.x // uint32(lanes)
        heads, kv_heads = query.shape[1], key_codes.shape[1]
        all_heads = heads + 2 * kv_heads
        is_query, is_rotated, is_any = head < heads, head < heads + kv_heads, head < all_heads
        position, slot = positions[token], slot_mapping[token]
        component = min(lane, uint32(active - 1)) * EACH
        values = cuda.local.array(EACH, float32)
        for k in range(EACH):
            values[k] = float32(0)
        if is_any:
            load_components(qkv, (token * all_heads + head) * head_dim + component, values)
        # All lanes of a warp normalise, rotate and compute scales together, because they shuffle; value heads stay unchanged.
        if has_norm:
            normalize(values, q_norm if is_query else k_norm, component, lane, epsilon, is_rotated)
        if has_positions:
            rotate(values, cos_sin, position, lane, is_rotated)
        if is_smooth and is_query:
            unsmooth(smoothing, kv_head_of(head, heads, kv_heads), component, values)
        if is_query and lane < active:
            for k in range(0, EACH, width):
                store_vector(query, (token * heads + head) * head_dim + component + k, values, k)
        stores, is_key = is_any and lane < active and slot >= 0, is_rotated and not is_query
        if is_smooth and is_key:
            smooth(smoothing, head - heads, component, values)
        codes, scales = key_codes if is_key else value_codes, key_scales if is_key else value_scales
        kv_head = head - heads if is_key else head - heads - kv_heads
        store_quantized(codes, scales, slot, kv_head, lane, values, stores and not is_query)
        if keeps_recent:
            recent, at = recent_key if is_key else recent_value, recent_slots[token]
            if is_any and not is_query and lane < active and at >= 0:
                for k in range(0, EACH, width):
                    store_vector(recent, (int64(at) * recent.shape[1] + kv_head) * head_dim + component + k, values, k)

    return qkv_rope_append_quantized_kernel


def qkv_rope_append_quantized(
    qkv, positions, slot_mapping, key_cache, value_cache, query, cos_sin, interleaved, q_norm, k_norm, epsilon, recent, stream
):
    """`qkv_rope_append` for QuantizedCaches; the caller has checked all other arguments.

    Raises KernelArgumentError for heads that it cannot rotate.
    """
    _, heads, head_dim = query.shape
    check_quantized_caches(key_cache, value_cache, None, head_dim)
    check_by_token(key_cache)
    check(
        cos_sin is None or (not interleaved and cos_sin.shape[1] == head_dim),
        "a quantised cache takes rotary positions that turn whole heads, in pairs half a head apart; not interleaved ones, nor a part",
    )
    is_smooth, has_norm = key_cache.smoothing is not None, q_norm is not None
    norms = (q_norm, k_norm) if has_norm else (qkv, qkv)  # a kernel's arguments are always arrays: these are not read
    check_aligned(qkv=qkv, query=query, q_norm=norms[0], k_norm=norms[1])
    angles, scales = qkv if cos_sin is None else cos_sin, (key_cache.scales, value_cache.scales)
    vectors = vectors_of_half_a_head(head_dim, head_dim, False, angles, qkv, query, *norms)
    if key_cache.format.is_float and query.dtype.itemsize == 2 and recent is None and serves(vectors, has_norm):
        arrays = (qkv, positions, slot_mapping, angles, *norms, query, key_cache.codes, value_cache.codes)
        has_positions, smoothing = cos_sin is not None, key_cache.smoothing
        launch_vectors(vectors, arrays, epsilon, has_positions, has_norm, stream, scales, smoothing, key_cache.format)
        return
    kv_heads, lanes = key_cache.shape[2], lanes_of(head_dim)
    recent_arrays = (query, query, positions) if recent is None else checked_recent(recent, query, kv_heads)
    options = (cos_sin is not None, has_norm, is_smooth, recent is not None)
    chosen = qkv_rope_append_quantized_kernel(query.dtype, key_cache.format, key_cache.shape[1], *options)
    arrays = (
        qkv, positions, slot_mapping, angles, *norms, query,
        key_cache.codes, key_cache.scales, key_cache.smoothing if is_smooth else qkv, value_cache.codes, value_cache.scales,
        *recent_arrays,
    )  # fmt: skip
    grid = (qkv.shape[0], ceil_div(heads + 2 * kv_heads, THREADS // lanes))
    launch(chosen, grid, THREADS, (*arrays, float(epsilon)), stream)


def checked_recent(recent, query, kv_heads):
    """The plain caches of recent tokens as [slots, kv_heads, head_dim], and their slots.

    Raises KernelArgumentError if they do not fit.
    """
    (key, value, slots), (tokens, _, head_dim) = recent, query.shape
    for name, array in (("recent key", key), ("recent value", value)):
        check_array(name, array, (query.dtype,), blocks=key.shape[0], block_size=key.shape[1], kv_heads=kv_heads, head_dim=head_dim)
    check_array("recent slots", slots, INDEX_DTYPES, tokens=tokens)
    check_aligned(recent_key=key, recent_value=value)
    return by_slot(key), by_slot(value), slots
