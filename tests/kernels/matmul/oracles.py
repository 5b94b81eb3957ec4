"""GEMMs in float64, and what is fused with them."""

import numpy as np
from ml_dtypes import finfo

from minllm.catalogue.matmul.products import EPSILON
from minllm.catalogue.matmul.quantized import sums_of
from minllm.kernels.quantization.reference import FLOAT8
from tests.kernels.rope.oracles import rotated


def normed(x, norm):
    """The RMSNorm of x; x itself if norm is None."""
    x = x.astype(np.float64)
    return x if norm is None else x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + EPSILON) * norm.astype(np.float64)


def product(shape, x, weight, out, bias=None, residual=None, norm=None):
    """x @ weight.T and the addends that there are."""
    addends = (array.astype(np.float64) for array in (bias, residual) if array is not None)
    return dict(out=sum(addends, normed(x, norm) @ weight.astype(np.float64).T))


def gated(sums):
    """silu of the first half of the columns times the second."""
    gate, up = np.split(sums, 2, axis=1)
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


def gated_product(shape, x, gate_up, out, norm=None):
    """Gate and up of the rows of x."""
    return dict(out=gated(normed(x, norm) @ gate_up.astype(np.float64).T))


def finished(scaled, squares=None):
    """The norm that `scaled` begins, if squares are given."""
    x = scaled.astype(np.float64)
    return x if squares is None else x / np.sqrt(squares.astype(np.float64).sum(axis=0)[:, None] / x.shape[1] + EPSILON)


def gated_of_deferred_norm(shape, scaled, squares, gate_up, out):
    """Gate and up of rows whose norm is finished first."""
    return dict(out=gated(finished(scaled, squares) @ gate_up.astype(np.float64).T))


def linear_add(shape, x, weight, bias, residual, norm):
    """The stream, and what its norm is made of."""
    stream = product(shape, x, weight, None, bias, residual)["out"]
    return dict(stream=stream, scaled=stream * norm.astype(np.float64))


def gemv_qkv_rope_append(shape, x, norm, weight, bias, **places):
    """From the norm of x."""
    return in_their_places(product(shape, x, weight, None, bias, norm=norm)["out"], codes=shape["codes"], **places)


def flat_qkv_rope_append(shape, scaled, weight, bias, squares=None, **places):
    """From rows whose norm is finished first."""
    return in_their_places(product(shape, finished(scaled, squares), weight, None, bias)["out"], **places)


def in_their_places(qkv, positions, slot_mapping, cos_sin, query, codes=None, **caches):
    """Queries and keys rotated; one token after the other appended, in the format `codes` if there is one."""
    heads, head_dim = query.shape[1:]
    qkv = qkv.reshape(len(query), -1, head_dim)
    kv_heads = (qkv.shape[1] - heads) // 2
    found = rotated(qkv[:, : heads + kv_heads], positions, head_dim, False)
    if codes is not None:
        return in_their_codes(codes, found[:, :heads], found[:, heads:], qkv[:, heads + kv_heads :], slot_mapping, **caches)
    caches = [caches[name].astype(np.float64) for name in ("key_cache", "value_cache")]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            for cache, new in zip(caches, (found[token, heads:], qkv[token, heads + kv_heads :])):
                cache[slot // cache.shape[1], slot % cache.shape[1]] = new
    return dict(query=found[:, :heads], key_cache=caches[0], value_cache=caches[1])


def in_their_codes(form, queries, keys, values, slot_mapping, key_codes, value_codes, key_scales, value_scales, smoothing=None):
    """Queries, keys and values [tokens, heads, head_dim] with caches of 8-bit floats, whose codes are compared as numbers."""
    if smoothing is not None:
        mean, factor, inverse = smoothing.astype(np.float64)
        queries, keys = queries * np.repeat(inverse, queries.shape[1] // len(inverse), axis=0), (keys - mean) * factor
    new = dict(key_codes=(key_codes, keys / key_scales[:, None]), value_codes=(value_codes, values / value_scales[:, None]))

    def compares(name):
        def compare(found, wanted):
            before, right = new[name]
            for codes in (found[name], wanted[name]):
                codes, at = codes.swapaxes(1, 2).reshape(-1, *right.shape[1:]), slot_mapping >= 0
                others = np.delete(before.swapaxes(1, 2).reshape(codes.shape), slot_mapping[at], axis=0)
                np.testing.assert_array_equal(np.delete(codes, slot_mapping[at], axis=0), others)
                assert_nearest_codes(codes[slot_mapping[at]].view(FLOAT8[form]), right[at])

        return compare

    return dict(query=queries) | {name: compares(name) for name in new}


def assert_nearest_codes(codes, right):
    """8-bit floats are the nearest to float64 numbers, or the next ones where the error of sums in float32 decides."""
    limits, largest = finfo(codes.dtype), np.abs(right).max(initial=0)
    right = np.clip(right, -float(limits.max), float(limits.max))
    half_step = np.maximum(np.abs(right), float(limits.smallest_normal)) * float(limits.eps) / 2
    assert (np.abs(codes.astype(np.float64) - right) <= half_step + 4e-5 * largest).all()


def quantized_product(shape, x, weight, out, bias=None, norm=None, residual=None, small=None):
    """Sums of the numbers that the codes stand for, which are not rounded, and the addends."""
    sums = sums_of(x, weight, norm, shape["form"], shape["variant"], shape["dtype"], small)
    addends = bias, out if shape["residual"] == "in place" else residual
    return dict(out=sum((one.astype(np.float64) for one in addends if one is not None), gated(sums) if shape["gated"] else sums))


def quantized_qkv(shape, x, norm, weight, bias, small=None, **places):
    """From the norm of x."""
    sums = sums_of(x, weight, norm, shape["form"], "tensor_core_gemv", shape["dtype"], small)
    return in_their_places(sums + (0 if bias is None else bias.astype(np.float64)), codes=shape["codes"], **places)
