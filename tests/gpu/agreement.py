"""The engine on a GPU compared with NumPy's, for each way to compute a batch."""

import numpy as np

from minllm import LLM

KV_CACHE_BYTES = 128 << 20  # per engine: processes share the GPU, and a fraction of the free memory would depend on the others
BLOCK_BYTES = 3 * 2 * 16 * 2 * 128 * 4  # a block of the random Llama 3: layers, K and V, tokens, heads, head_dim, float32


def engines_that_agree(token_ids, params, **options):
    """Yields (LLM on the GPU, greedy tokens of two prompts): with graphs and whole prompts, then eagerly in chunks.

    Asserts that the logits of `token_ids` are those of the CPU's engine within bfloat16's error. options: LLM()'s.
    """
    gpu = dict(device="cuda", kv_cache_memory_bytes=KV_CACHE_BYTES, **options)
    with LLM(device="cpu", **options) as llm:
        expected = llm.logits(token_ids)
    spread = np.linalg.norm(expected - expected.mean(axis=1, keepdims=True))
    for budget, eager in ((2048, False), (77, True)):
        with LLM(max_num_batched_tokens=budget, enforce_eager=eager, **gpu) as llm:
            difference = llm.logits(token_ids) - expected
            assert np.linalg.norm(difference - difference.mean(axis=1, keepdims=True)) < 0.06 * spread
            outputs = llm.generate([token_ids[:20], token_ids[5:100]], params)
            yield llm, [output.outputs[0].token_ids for output in outputs]


def share_of_same(tokens):
    """The share of positions at which two engines chose the same token, 0 to 1.

    bfloat16 sums in another order may change a close choice, and then every token after it.
    """
    return np.mean([a == b for pair in zip(*tokens, strict=True) for a, b in zip(*pair, strict=True)])
