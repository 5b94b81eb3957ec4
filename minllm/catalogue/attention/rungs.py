"""The launches of the first rungs: scores in memory, the lesson's decoder on top of them, then online softmax with its state in memory."""

import numpy as np

from minllm.catalogue.attention.paged import LENS, SLACK, attention
from minllm.catalogue.launch import Launch, MachineCode, Moved, describes, returns
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32
from minllm.kernels.attention.first_rungs.materialized_projection import MaterializedDecoder
from minllm.kernels.attention.reference import attend


@describes
def materialized_decoder(tokens, hidden, heads, kv_heads, head_dim, dtype=BFLOAT16, max_len=8):
    """A prompt, and one more token. Hidden states come from the host, so they are no arrays of the launch."""
    states = np.random.default_rng(tokens).standard_normal((tokens + 1, hidden)).astype(dtype)

    def arrays(noise):
        widths = dict(query_weight=heads, key_weight=kv_heads, value_weight=kv_heads)
        weights = {name: noise.array((width * head_dim, hidden), dtype, hidden**-0.5) for name, width in widths.items()}
        return weights | dict(out=noise.unwritten((1, heads, head_dim), dtype))

    def call(ops, query_weight, key_weight, value_weight, out):
        def placed(array):
            return ops.array(array) if isinstance(array, np.ndarray) else array

        decoder = MaterializedDecoder(query_weight, key_weight, value_weight, head_dim, 1, max_len, placed)
        decoder.insert([0], [states[:tokens]])
        decoder.decode(states[tokens:], out)

    def reference(query_weight, key_weight, value_weight):
        projected = (states.astype(np.float32) @ weight.astype(np.float32).T for weight in (query_weight, key_weight, value_weight))
        query, keys, values = (x.astype(dtype).astype(np.float32).reshape(tokens + 1, -1, head_dim) for x in projected)
        return attend(query[tokens:], keys, values, head_dim**-0.5).astype(dtype)

    moved = decoder_moved(tokens, hidden, heads * head_dim, kv_heads * head_dim, dtype.itemsize)
    return Launch(arrays, call, returns(("out",), reference), moved, indices=(*LENS, "input_lens", "rows"), slack=2 * SLACK[dtype])


def decoder_moved(tokens, hidden, width, kv_width, b):
    """Every element of a projection reads its token and its row of the weight; the latest token's are counted with its query."""
    read, kept = kv_width * hidden * b, kv_width * b  # bytes for the keys of one token; its values take as many
    caches = dict(key_weight=read, value_weight=read, key_transposed=kept, value_cache=kept)
    fill = {name: tokens * count for name, count in caches.items()} | dict(inputs=2 * tokens * read)
    once = dict(inputs=tokens * hidden * b, key_weight=read, value_weight=read)
    latest = caches | dict(query_weight=width * hidden * b, query=width * b, inputs=(width + 2 * kv_width) * hidden * b)
    return {
        "fill_new_key_value_kernel": Moved(fill, once, operations=tokens * 2 * kv_width * 2 * hidden),
        "project_latest_kernel": Moved(latest, dict(inputs=hidden * b), operations=(width + 2 * kv_width) * 2 * hidden),
    }


def compiled():
    """All dtypes. Of the first rung's 128 threads per block 8 blocks are half of an SM's warps."""
    for dtype in DTYPES:
        steps = dict(transpose="transpose_keys", scores="scores", softmax="softmax", weighted_values="weighted_values")
        launch = attention("materialized", (9,), (9,), 32, 8, 128, dtype)
        for name, kernel in steps.items():
            if name != "softmax" or dtype == FLOAT32:  # scores are always float32
                yield MachineCode(f"attention/materialized/{name}/{dtype}", launch, blocks=8, kernel_name=f"{kernel}_kernel")
        launch = materialized_decoder(3, 64, 4, 2, 16, dtype)
        for name, kernel in dict(fill="fill_new_key_value_kernel", project="project_latest_kernel").items():
            yield MachineCode(f"attention/materialized/{name}/{dtype}", launch, blocks=8, kernel_name=kernel)
        for head_dim in (64, 128, 256):
            launch = attention("flash_attention_1", (9,), (9,), 32, 8, head_dim, dtype)
            yield MachineCode(f"attention/flash_attention_1/{head_dim}/{dtype}", launch, blocks=1)


def small():
    """Prompts of which formulas count the bytes; layers side by side; the decoder."""
    short = dict(query_lens=(3, 0, 2), context_lens=(18, 4, 2), heads=2, kv_heads=1, head_dim=16, dtype=FLOAT16, block_size=8, layers=3)
    for variant, tokens, heads, kv_heads in (("materialized", 9, 4, 2), ("flash_attention_1", 35, 2, 1)):
        yield attention(variant, (tokens,), (tokens,), heads, kv_heads, 16)
        yield attention(variant, **short)
    yield materialized_decoder(3, 24, 4, 2, 8)
