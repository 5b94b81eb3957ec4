"""The fused step by norms and complex rotations in float64."""

import numpy as np

from minllm.catalogue.kv.plain import EPSILON, last_layer
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.reference import dequantize_reference
from tests.kernels.normalization.oracles import rms_norm_of
from tests.kernels.rope.oracles import rotated


def qkv_rope_append(shape, qkv, positions, slot_mapping, cos_sin, q_norm, k_norm, key_cache, value_cache, query):
    """Queries, and keys and values in their slots."""
    tokens, heads, head_dim = query.shape
    kv_heads = (qkv.size // tokens // head_dim - heads) // 2
    rows = qkv[int(shape["unaligned"]) :].astype(np.float64).reshape(tokens, -1, head_dim)
    queries, keys, values = np.split(rows, [heads, heads + kv_heads], axis=1)
    if q_norm is not None:
        normed = ((x, rms_norm_of(x.reshape(-1, head_dim), weight, EPSILON)) for x, weight in ((queries, q_norm), (keys, k_norm)))
        queries, keys = (found.reshape(x.shape) for x, found in normed)
    queries, keys = (rotated(x, positions, shape["rotary_dim"], shape["interleaved"]) for x in (queries, keys))
    found, used = dict(query=queries), slot_mapping >= 0
    for name, cache, written in (("key_cache", key_cache, keys), ("value_cache", value_cache, values)):
        found[name] = cache.astype(np.float64)
        block, offset = np.divmod(slot_mapping[used], cache.shape[1])
        last_layer(found[name], shape["layers"])[block, offset] = written[used]
    return found


def qkv_rope_append_quantized(shape, key_codes, key_scales, **others):
    """Keys, whose norms and rotations round differently, are at most a step of the format away; the reference has the rest to the bit."""
    form = kv_format(shape["name"], shape["head_dim"], shape["group_size"])

    def numbers(codes, scales):
        return dequantize_reference(codes.swapaxes(1, 2), scales if form.is_float else scales.swapaxes(1, 2), form)

    def check_keys(found, wanted):
        written = (wanted["key_codes"] != key_codes).any(axis=-1)
        for name in ("key_codes",) if form.is_float else ("key_codes", "key_scales"):
            np.testing.assert_array_equal(found[name][~written].view(np.uint8), wanted[name][~written].view(np.uint8))
        ours, theirs = (numbers(one["key_codes"], one.get("key_scales", key_scales)) for one in (found, wanted))
        ours, theirs = ours[written.swapaxes(1, 2)], theirs[written.swapaxes(1, 2)]
        if form.is_float:
            step = np.maximum(np.abs(theirs) / 2 ** (2 if form.name == "fp8_e5m2" else 3), np.abs(theirs).max(initial=0) * 2**-9)
        else:
            pairs, right = (one["key_scales"][written].astype(np.float32) for one in (found, wanted))
            assert (np.abs(pairs - right) <= 2.0**-9 * np.abs(right) + 1e-6).all()  # the next float16 at most
            scales = wanted["key_scales"].swapaxes(1, 2)[written.swapaxes(1, 2)][..., 0]
            step = np.repeat(scales.astype(np.float32), form.group_size, axis=-1)
        error = np.abs(ours - theirs)
        assert (error <= 1.05 * step + 1e-3).all()
        assert (error > 0.5 * step).sum() <= 0.02 * error.size  # only a number on the edge may have another code

    return dict.fromkeys(("key_codes", "key_scales"), check_keys)
