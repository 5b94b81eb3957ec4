"""Attention of the rows that verify draft trees, on a paged cache with blocks in random order, in bytes per second."""

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, TB_S, KernelCase, Prepared, relative_error
from minllm.bench.kernel_cases.attention import BLOCK_SIZE, block_tables_of, key_value_bytes
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.tree.reference import tree_attention_reference
from minllm.kernels.speculation.token_tree import TokenTree

TREE = "[(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)]"  # seven drafts of depth up to three, in vLLM's notation


def tree_case(
    sequences: int, context: int, heads: int = 32, kv_heads: int = 8, head_dim: int = 128, dtype: np.dtype = BFLOAT16
) -> KernelCase:
    """Attention of the nodes of one tree per sequence; their keys are the last of the sequence's `context` keys."""
    tree = TokenTree.parse(TREE)
    rows, scale = len(tree), head_dim**-0.5

    def prepare(ops, noise, sets):
        tables = block_tables_of(noise.random, sets, sequences, -(-context // BLOCK_SIZE))
        shape = (int(tables.max()) + 1, BLOCK_SIZE, kv_heads, head_dim)
        key_cache, value_cache = noise.array(shape, dtype), noise.array(shape, dtype)
        queries = [noise.array((sequences * rows, heads, head_dim), dtype) for _ in range(sets)]
        caches = ops.array(key_cache), ops.array(value_cache)
        starts, lengths = np.arange(sequences + 1, dtype=np.int32) * rows, np.full(sequences, context, np.int32)
        batch, nodes = (ops.array(starts), ops.array(lengths)), tree.on(ops, rows)
        inputs = [
            dict(query=ops.array(query), out=ops.empty(query.shape, dtype), block_tables=ops.array(table))
            for query, table in zip(queries, tables, strict=True)
        ]

        def launch(arrays):
            query, out, table = arrays["query"], arrays["out"], arrays["block_tables"]
            VARIANTS["tree"].attention(query, *caches, out, *batch, table, nodes, 0, scale, max_query_len=rows, stream=ops.stream)

        first = queries[0][:rows].astype(np.float32), key_cache, value_cache, starts[:2], lengths[:1], tables[0][:1]
        expected = tree_attention_reference(*first, tree.sees, 0, scale)
        return Prepared(
            [lambda arrays=arrays: launch(arrays) for arrays in inputs],
            inputs,
            result=lambda: ops.to_host(inputs[0]["out"]),
            error=lambda out: relative_error(out[:rows], expected),
        )

    work = key_value_bytes(sequences, context, kv_heads, head_dim, dtype.itemsize)
    set_bytes = work + 2 * sequences * rows * heads * head_dim * dtype.itemsize  # the queries and the output
    case = f"{sequences}x{context}, {rows} nodes each, {heads}/{kv_heads} heads, d {head_dim}, {dtype.name}"
    return KernelCase(
        "attention", "decode attention of trees", case, variant="tree", dtype=dtype, unit=TB_S, work=work, set_bytes=set_bytes,
        prepare=prepare,
    )  # fmt: skip


def cases() -> list[KernelCase]:
    """Cases with 1, 16 and 64 sequences of 1024 keys."""
    return [tree_case(sequences, 1024) for sequences in (1, 16, 64)]
