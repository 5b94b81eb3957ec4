"""Writing a quantised cache, relative to the rate of a copy, and prompt attention over one, in FLOP/s.

The kernels' docstrings give the bytes: 16-bit numbers are read, codes and scales written.
"""

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, TFLOP_S, KernelCase, Prepared, relative_error
from minllm.bench.kernel_cases.attention import BLOCK_SIZE, prefill_flops, sampled_rows
from minllm.bench.kernel_cases.glue import EPSILON, Glue, angles, glue_case, slots_of
from minllm.kernels.attention import VARIANTS
from minllm.kernels.kv.append import append, append_reference
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from minllm.kernels.quantization.cache import QuantizedCache, allocate
from minllm.kernels.quantization.formats import kv_format

ITEM = BFLOAT16.itemsize
FORMATS = ("int8", "int4", "fp8_e4m3")


def empty_cache(ops, name, num_blocks, kv_heads, head_dim, block_size=BLOCK_SIZE):
    """A QuantizedCache of zeros on the device, with scales of 1 for fp8."""
    return allocate(kv_format(name, head_dim), num_blocks, block_size, kv_heads=kv_heads, zeros=ops.zeros, array=ops.array)


def written(name, value):
    """The reference's codes of value [T, kv_heads, head_dim]: uint8 [T * kv_heads, code_bytes]."""
    tokens, kv_heads, head_dim = value.shape
    caches = [allocate(kv_format(name, head_dim), tokens, 1, kv_heads=kv_heads, zeros=np.zeros, array=np.asarray) for _ in range(2)]
    append_reference(value, value, *caches, np.arange(tokens))
    return caches[1].codes.reshape(tokens * kv_heads, -1)


def rows_of(slots, kv_heads, block_size=BLOCK_SIZE):
    """Row indices [T * kv_heads] of all heads of these slots [T] in a cache [num_blocks, kv_heads, block_size]."""
    block, offset = np.divmod(slots[:, None], block_size)
    return ((block * kv_heads + np.arange(kv_heads)) * block_size + offset).reshape(-1)


def append_case(name: str, tokens=65536, kv_heads=8, head_dim=128) -> KernelCase:
    """Quantising and appending keys and values; the codes of the values must equal the reference's bit for bit."""

    def make(ops, noise):
        key, value = (noise.array((tokens, kv_heads, head_dim), BFLOAT16) for _ in range(2))
        blocks, slots = slots_of(tokens, noise)
        caches = [empty_cache(ops, name, blocks, kv_heads, head_dim) for _ in range(2)]
        arrays = [ops.array(key), ops.array(value), *caches, ops.array(slots)]
        expected = lambda sample: written(name, value[sample])  # noqa: E731
        return Glue(lambda: append(*arrays, stream=ops.stream), caches[1].codes, expected, lambda sample: rows_of(slots[sample], kv_heads))

    moved = 2 * tokens * kv_heads * (head_dim * ITEM + kv_format(name, head_dim).bytes_per_head)
    return glue_case(
        "kv", "append_quantized", f"{tokens}x{kv_heads}x{head_dim}, {name}", tokens=tokens, moved=moved, make=make, tolerance=0.0
    )


def qkv_rope_append_case(name: str, tokens=10240, heads=32, kv_heads=8, head_dim=128) -> KernelCase:
    """RoPE and append to a quantised cache, from the output of the qkv projection; checked by the codes of the values."""
    width = (heads + 2 * kv_heads) * head_dim

    def make(ops, noise):
        qkv, positions = noise.array((tokens, width), BFLOAT16), np.arange(tokens, dtype=np.int32)
        blocks, slots = slots_of(tokens, noise)
        caches = [empty_cache(ops, name, blocks, kv_heads, head_dim) for _ in range(2)]
        query, table = ops.empty((tokens, heads, head_dim), BFLOAT16), ops.array(angles(tokens, head_dim))
        arrays = [ops.array(qkv), ops.array(positions), ops.array(slots), *caches, query, table]

        def expected(sample):
            return written(name, qkv[sample].reshape(len(sample), -1, head_dim)[:, heads + kv_heads :])

        def launch():
            qkv_rope_append(*arrays, epsilon=EPSILON, stream=ops.stream)

        return Glue(launch, caches[1].codes, expected, lambda sample: rows_of(slots[sample], kv_heads))

    moved = tokens * ((width + heads * head_dim) * ITEM + 2 * kv_heads * kv_format(name, head_dim).bytes_per_head)
    case = f"{tokens}x({heads}+2x{kv_heads})x{head_dim}, {name}"
    return glue_case("kv", "qkv_rope_append_quantized", case, tokens=tokens, moved=moved, make=make, tolerance=0.0)


def prefill_case(
    name: str, sequences: int, tokens: int, heads=32, kv_heads=8, head_dim=128, variant="flash_attention_2_quantized"
) -> KernelCase:
    """Causal attention of whole prompts over a quantised cache in blocks of 16."""
    blocks = -(-tokens // BLOCK_SIZE)  # blocks per sequence

    def prepare(ops, noise, sets):
        table = noise.random.permutation(sequences * blocks).astype(np.int32).reshape(sequences, blocks)
        hosts = []
        for _ in range(2):
            host = empty_cache(HostArrays, name, sequences * blocks, kv_heads, head_dim)
            slots = np.arange(sequences * blocks * BLOCK_SIZE)
            host.put(slots, noise.array((len(slots), kv_heads, head_dim), BFLOAT16))
            hosts.append(host)
        caches = [QuantizedCache(ops.array(host.codes), ops.array(host.scales), host.format) for host in hosts]
        query = noise.array((sequences * tokens, heads, head_dim), BFLOAT16)
        start, lengths = np.arange(sequences + 1, dtype=np.int32) * tokens, np.full(sequences, tokens, np.int32)
        arrays, out = [ops.array(array) for array in (query, start, lengths, table)], ops.empty(query.shape, BFLOAT16)
        module, scale = VARIANTS[variant], head_dim**-0.5

        def launch():
            module.attention(arrays[0], *caches, out, *arrays[1:], scale, max_query_len=tokens, stream=ops.stream)

        expected = sampled_rows(query, *hosts, table, tokens, lengths, scale)
        return Prepared(
            [launch], [], lambda: ops.to_host(out), lambda found: relative_error(found[list(expected)], np.stack(list(expected.values())))
        )

    work = prefill_flops(sequences, tokens, heads, head_dim)
    set_bytes = 2 * sequences * tokens * (heads * head_dim * ITEM + kv_heads * kv_format(name, head_dim).bytes_per_head)
    case = f"{sequences}x{tokens}, {heads}/{kv_heads} heads, d {head_dim}, {BFLOAT16.name}, {name} cache"
    return KernelCase(
        "attention",
        "prefill attention",
        case,
        variant=variant,
        dtype=BFLOAT16,
        unit=TFLOP_S,
        work=work,
        set_bytes=set_bytes,
        prepare=prepare,
    )


class HostArrays:
    """Allocates arrays in host memory, with the interface of CudaOps."""

    zeros, array = staticmethod(np.zeros), staticmethod(np.asarray)


def cases() -> list[KernelCase]:
    """Both kernels that write, and a prompt, in every format except e5m2, which behaves like e4m3."""
    writers = [case(name) for case in (append_case, qkv_rope_append_case) for name in FORMATS]
    return [*writers, *(prefill_case(name, 1, 4096) for name in FORMATS)]
