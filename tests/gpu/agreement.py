"""The engine on a GPU held against NumPy's, in the ways that a batch may be computed."""

import numpy as np

from minllm import LLM


def engines_that_agree(token_ids, params, **options):
    """Yields (LLM on the GPU, greedy tokens of two prompts): with graphs and prompts whole, then kernel by kernel in chunks.

    The logits of `token_ids` are asserted to be those of the CPU's engine, but for what bfloat16 makes of them. options: LLM()'s.
    """
    with LLM(device="cpu", **options) as llm:
        expected = llm.logits(token_ids)
    spread = np.linalg.norm(expected - expected.mean(axis=1, keepdims=True))
    for budget, eager in ((2048, False), (77, True)):
        with LLM(device="cuda", max_num_batched_tokens=budget, enforce_eager=eager, gpu_memory_utilization=0.3, **options) as llm:
            difference = llm.logits(token_ids) - expected
            assert np.linalg.norm(difference - difference.mean(axis=1, keepdims=True)) < 0.06 * spread
            outputs = llm.generate([token_ids[:20], token_ids[5:100]], params)
            yield llm, [output.outputs[0].token_ids for output in outputs]


def share_of_same(tokens):
    """How many tokens two engines have in common, place by place: 0 to 1. bfloat16 sums in another order may turn a close choice, and
    all that follows it."""
    return np.mean([a == b for pair in zip(*tokens, strict=True) for a, b in zip(*pair, strict=True)])
