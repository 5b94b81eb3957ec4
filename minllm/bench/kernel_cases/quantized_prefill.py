"""Prompt attention over a quantised cache, in FLOP/s."""

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, TFLOP_S, KernelCase, Prepared, relative_error
from minllm.catalogue.attention.benchmarks import prefill_flops
from minllm.catalogue.attention.paged import BLOCK_SIZE
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.quantization.cache import QuantizedCache, allocate
from minllm.kernels.quantization.formats import kv_format

FORMATS = ("int8", "int4", "fp8_e4m3")
SAMPLE_ROWS = 32  # queries at each end of a sequence that are recomputed on the host


def empty_cache(ops, name, num_blocks, kv_heads, head_dim, block_size=BLOCK_SIZE):
    """A QuantizedCache of zeros on the device, with scales of 1 for fp8."""
    return allocate(kv_format(name, head_dim), num_blocks, block_size, kv_heads=kv_heads, zeros=ops.zeros, array=ops.array)


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
    set_bytes = 2 * sequences * tokens * (heads * head_dim * BFLOAT16.itemsize + kv_heads * kv_format(name, head_dim).bytes_per_head)
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


def sampled_rows(query, key_cache, value_cache, block_tables, tokens, lengths, scale) -> dict[int, np.ndarray]:
    """{row of query: the reference's float32 [heads, head_dim]}, for rows at the ends of the first and last sequences."""
    rows, expected = min(tokens, SAMPLE_ROWS), {}
    for sequence in {0, len(block_tables) - 1}:
        for first in {0, tokens - rows}:
            start = sequence * tokens + first
            batch = [np.array([0, rows]), np.array([lengths[sequence] - tokens + first + rows]), block_tables[sequence : sequence + 1]]
            out = attention_reference(query[start : start + rows].astype(np.float32), key_cache, value_cache, *batch, scale)
            expected.update(zip(range(start, start + rows), out, strict=True))
    return expected


class HostArrays:
    """Allocates arrays in host memory, with the interface of CudaOps."""

    zeros, array = staticmethod(np.zeros), staticmethod(np.asarray)


def cases() -> list[KernelCase]:
    """A prompt in every format except e5m2, which behaves like e4m3."""
    return [prefill_case(name, 1, 4096) for name in FORMATS]
