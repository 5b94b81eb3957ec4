"""Decode attention over quantised caches, in tokens of context per second, beside the bfloat16 kernel.

Codes, scales and zeros are random, such that the numbers have mean 0 and deviation 1. The rival has different keys and values of the same
shape, as only the speed matters.
"""

from dataclasses import replace

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, TOKENS_US, KernelCase, Prepared, Rival, relative_error
from minllm.catalogue.attention.benchmarks import ragged_lengths
from minllm.catalogue.attention.paged import BLOCK_SIZE
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_tensor_core import split_tensor_core
from minllm.kernels.quantization.cache import QuantizedCache
from minllm.kernels.quantization.formats import TOKEN_FORMATS, kv_format
from minllm.kernels.quantization.reference import FLOAT8

SIZES = ((1, 8192), (64, 4096), (256, 1024))  # sequences x keys
PAGED = (64, 4096)
SPREAD = 3.46  # the width of a uniform distribution with deviation 1
STRIP = 1_000_003  # numbers drawn for codes and scales, then repeated; a prime, so that rows differ
RIVAL = "minllm split_tensor_core, bfloat16"


def random_cache(noise, form, num_blocks, block_size, kv_heads, array, of_keys=False):
    """A QuantizedCache of random numbers with deviation 1.

    array(host_array): copies an array to the device. of_keys: quantise by channel, if the format does so for keys.
    """
    shape = (num_blocks, kv_heads, block_size, form.code_bytes)
    if form.is_float:
        codes = noise.array(shape, FLOAT8[form.name]).view(np.uint8)
        return QuantizedCache(array(codes), array(np.ones(kv_heads, np.float32)), form)
    codes = np.resize(noise.random.integers(0, 256, STRIP, np.uint8), shape)
    scale = noise.random.uniform(0.8, 1.2, STRIP) * SPREAD / form.levels
    pairs = np.stack([scale, -SPREAD / 2 * noise.random.uniform(0.9, 1.1, STRIP)], axis=-1).astype(np.float16)
    if of_keys and form.keys_by_channel:
        of_groups = (num_blocks, kv_heads, block_size // form.token_group, form.head_dim, 2)
        return QuantizedCache(array(codes), array(np.resize(pairs, of_groups)), form, by_channel=True)
    return QuantizedCache(array(codes), array(np.resize(pairs, (num_blocks, kv_heads, block_size, form.groups, 2))), form)


def quantized_decode_case(
    name: str, sequences: int, context: int, heads: int = 32, kv_heads: int = 8, head_dim: int = 128, layout: str = "contiguous"
) -> KernelCase:
    """Attention of one new token per sequence over caches in format `name`.

    layout: "" for blocks of 16 in random order, "contiguous" for one block per sequence, "ragged" for blocks of 16 and different lengths
    up to `context`.
    """
    form = kv_format(name, head_dim)
    lengths = ragged_lengths(sequences, context) if layout == "ragged" else np.full(sequences, context)
    tokens = int(lengths.sum())
    block_size = context if layout == "contiguous" else BLOCK_SIZE
    blocks = -(-context // block_size)  # blocks per sequence

    def prepare(ops, noise, sets):
        num_blocks = sets * sequences * blocks
        hosts = [random_cache(noise, form, num_blocks, block_size=block_size, kv_heads=kv_heads, array=np.asarray) for _ in range(2)]
        caches = [replace(host, codes=ops.array(host.codes), scales=ops.array(host.scales)) for host in hosts]
        plain = [ops.array(noise.array((num_blocks, block_size, kv_heads, head_dim), BFLOAT16)) for _ in range(2)]
        tables = noise.random.permutation(num_blocks).astype(np.int32).reshape(sets, sequences, blocks)
        query = noise.array((sequences, heads, head_dim), BFLOAT16)
        shared = dict(
            query=ops.array(query),
            query_start=ops.array(np.arange(sequences + 1, dtype=np.int32)),
            context_lens=ops.array(lengths.astype(np.int32)),
        )
        inputs = [dict(shared, out=ops.empty(query.shape, BFLOAT16), block_tables=ops.array(table)) for table in tables]
        scale = head_dim**-0.5

        def launches(module, key_cache, value_cache):
            workspace = make_workspace(module.workspace_shapes(query, key_cache, tables[0]), ops.empty, ops.zeros)

            def launch(arrays):
                batch = (arrays["query_start"], arrays["context_lens"], arrays["block_tables"])
                options = dict(max_query_len=1, workspace=workspace, stream=ops.stream)
                module.attention(arrays["query"], key_cache, value_cache, arrays["out"], *batch, scale, **options)

            return [lambda arrays=arrays: launch(arrays) for arrays in inputs]

        expected = {
            row: attention_reference(
                query[row : row + 1].astype(np.float32), *hosts, np.array([0, 1]), lengths[row : row + 1], tables[0, row : row + 1], scale
            )[0]
            for row in {0, sequences - 1}
        }
        return Prepared(
            launches(split_quantized, *caches),
            inputs,
            result=lambda: ops.to_host(inputs[0]["out"]),
            error=lambda out: relative_error(out[list(expected)], np.stack(list(expected.values()))),
            rival=Rival(RIVAL, launches(split_tensor_core, *plain)),
        )

    num_bytes = 2 * tokens * kv_heads * form.bytes_per_head
    set_bytes = 2 * sequences * context * kv_heads * form.bytes_per_head
    case = f"{sequences}x{context}, {heads}/{kv_heads} heads, d {head_dim}, {name}{layout and ', ' + layout}"
    names = ("attention", "decode attention, quantised", case, "split_quantized", BFLOAT16, TOKENS_US)
    return KernelCase(*names, num_bytes, set_bytes, prepare, tokens=tokens)


def cases() -> list[KernelCase]:
    """All sizes in every format, contiguous; one size with blocks of 16 and with ragged lengths."""
    contiguous = [quantized_decode_case(name, *sizes) for sizes in SIZES for name in TOKEN_FORMATS]
    return [*contiguous, *(quantized_decode_case(name, *PAGED, layout=layout) for layout in ("", "ragged") for name in TOKEN_FORMATS[:3])]
