"""What the Linears of a model multiply in one forward: activations and weights."""

import numpy as np

from minllm import LLM


def linear_inputs(llm: LLM, token_ids: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(x [tokens, inputs], weight [outputs, inputs]) of every Linear that a forward of `token_ids` calls, in order; the head comes last.

    llm: on the CPU, its weights not quantised.
    """
    found, ops = [], llm.engine.ops
    linear_of_ops = ops.linear

    def linear(x, linear, out_dtype=None):
        found.append((np.array(x), linear.weight))
        return linear_of_ops(x, linear, out_dtype)

    ops.linear = linear
    try:
        llm.logits(token_ids)
    finally:
        del ops.linear
    return found
