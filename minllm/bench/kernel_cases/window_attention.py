"""Attention with a residual window: decode steps and prompts.

Decode steps are measured in tokens of context per second, beside minllm's bfloat16 kernel. Codes and scales are random, as in
quantized_attention.py; recent keys and values are normally distributed.
"""

from dataclasses import replace

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, TFLOP_S, TOKENS_US, KernelCase, Prepared, Rival, relative_error
from minllm.bench.kernel_cases.quantized_attention import RIVAL, random_cache
from minllm.catalogue.attention.benchmarks import prefill_flops
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.residual_window import residual_window
from minllm.kernels.attention.residual_window.reference import attention_with_window_reference, window_start
from minllm.kernels.attention.split_tensor_core import split_tensor_core
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.groups import TOKEN_GROUP

WINDOW, ITEM = 128, BFLOAT16.itemsize  # keys, bytes
FORMATS = ("int8", "fp8_e4m3", "kivi_int4")
STEPS = ((64, 4096), (256, 1024))  # sequences x keys
PROMPT = 4096  # tokens
SAMPLE = (0, 127, 159, 160, 1000, -1)  # rows of a prompt that are compared with the reference


def window_case(name: str, sequences: int, context: int, new: int, heads=32, kv_heads=8, head_dim=128, window=WINDOW) -> KernelCase:
    """Attention of the last `new` tokens of each sequence, with one cache block per sequence."""
    form, scale = kv_format(name, head_dim), head_dim**-0.5
    base = int(window_start(context - new, window))
    recent_len = context - base
    recent_blocks = -(-recent_len // TOKEN_GROUP)  # blocks per sequence

    def prepare(ops, noise, sets):
        hosts = [
            random_cache(noise, form, sets * sequences, block_size=context, kv_heads=kv_heads, array=np.asarray, of_keys=of_keys)
            for of_keys in (True, False)
        ]
        caches = [replace(host, codes=ops.array(host.codes), scales=ops.array(host.scales)) for host in hosts]
        recent_shape = (sequences * recent_blocks, TOKEN_GROUP, kv_heads, head_dim)
        recent_hosts = [noise.array(recent_shape, BFLOAT16) for _ in range(2)]
        recents = [ops.array(host) for host in recent_hosts]
        tables = noise.random.permutation(sets * sequences).astype(np.int32).reshape(sets, sequences, 1)
        recent_table = noise.random.permutation(sequences * recent_blocks).astype(np.int32).reshape(sequences, recent_blocks)
        query = noise.array((sequences * new, heads, head_dim), BFLOAT16)
        start = np.arange(sequences + 1, dtype=np.int32) * new
        lens, recent_lens = np.full(sequences, context, np.int32), np.full(sequences, recent_len, np.int32)
        shared = dict(query=query, query_start=start, context_lens=lens, recent_lens=recent_lens, recent_tables=recent_table)
        shared = {field: ops.array(array) for field, array in shared.items()}
        inputs = [dict(shared, out=ops.empty(query.shape, BFLOAT16), block_tables=ops.array(table)) for table in tables]
        shapes = residual_window.workspace_shapes(
            query, hosts[0], tables[0], recent_key=recent_hosts[0], recent_tables=recent_table, max_query_len=new
        )
        workspace = make_workspace(shapes, ops.empty, ops.zeros)

        def launch(arrays):
            residual_window.attention(
                arrays["query"], *caches, *recents, arrays["out"], arrays["query_start"], arrays["context_lens"], arrays["block_tables"],
                arrays["recent_lens"], arrays["recent_tables"], scale, window, 0, new, workspace, ops.stream,
            )  # fmt: skip

        def reference(row):
            sequence, position = row // new, context - new + row % new
            one, context_len = slice(sequence, sequence + 1), np.array([position + 1])
            return attention_with_window_reference(
                query[row : row + 1].astype(np.float32), *hosts, *recent_hosts, np.array([0, 1]), context_len, tables[0, one],
                context_len - base, recent_table[one], scale, window,
            )[0]  # fmt: skip

        rows = sorted({row % len(query) for row in (SAMPLE if new > 1 else (0, -1))})
        expected = np.stack([reference(row) for row in rows])
        rival = (
            None
            if new > 1
            else Rival(RIVAL, bfloat16_steps(ops, noise, tables, inputs=inputs, scale=scale, context=context, kv_heads=kv_heads))
        )
        return Prepared(
            [lambda arrays=arrays: launch(arrays) for arrays in inputs],
            inputs,
            result=lambda: ops.to_host(inputs[0]["out"]),
            error=lambda out: relative_error(out[rows], expected),
            rival=rival,
        )

    code_bytes = 2 * sequences * context * kv_heads * form.bytes_per_head
    recent_bytes = 2 * sequences * recent_len * kv_heads * head_dim * ITEM
    case = f"{sequences}x{context}, {heads}/{kv_heads} heads, d {head_dim}, {name}, window {window}"
    names = (case, "residual_window", BFLOAT16)
    if new > 1:
        work, rows_bytes = prefill_flops(sequences, new, heads, head_dim), 4 * sequences * new * heads * head_dim * ITEM
        return KernelCase("attention", "prefill attention", *names, TFLOP_S, work, code_bytes + recent_bytes + rows_bytes, prepare)
    num_bytes = 2 * sequences * base * kv_heads * form.bytes_per_head + recent_bytes
    benchmark = "decode attention, quantised"
    return KernelCase("attention", benchmark, *names, TOKENS_US, num_bytes, code_bytes, prepare, tokens=sequences * context)


def bfloat16_steps(ops, noise, tables, inputs, scale, context, kv_heads):
    """Launches of the rival, minllm's bfloat16 kernel, on caches of the same shape."""
    sets, sequences, _ = tables.shape
    query = inputs[0]["query"]
    plain = [ops.array(noise.array((sets * sequences, context, kv_heads, query.shape[2]), BFLOAT16)) for _ in range(2)]
    workspace = make_workspace(split_tensor_core.workspace_shapes(query, plain[0], tables[0]), ops.empty, ops.zeros)

    def launch(arrays):
        batch = (arrays["query_start"], arrays["context_lens"], arrays["block_tables"])
        options = dict(max_query_len=1, workspace=workspace, stream=ops.stream)
        split_tensor_core.attention(arrays["query"], *plain, arrays["out"], *batch, scale, **options)

    return [lambda arrays=arrays: launch(arrays) for arrays in inputs]


def cases() -> list[KernelCase]:
    """Decode steps of many sequences, and a prompt."""
    steps = [window_case(name, *sizes, 1) for sizes in STEPS for name in FORMATS]
    return [*steps, *(window_case(name, 1, PROMPT, PROMPT) for name in FORMATS)]
