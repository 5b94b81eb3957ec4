"""What a residual window adds: the newest tokens of every sequence that runs, as they are, beside the codes of all.

    memory   (R / G + 1) G tokens a sequence, R of the window, G a group (cache/residual_window.py)
    a step   reads L keys and values as codes, and the others of its context as they are; L = floor(max(0, context - R) / G) G

Source: Liu et al. 2024, "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", section 3.2.
"""

from minllm.kernels.quantization.formats import TOKEN_GROUP


def ring_tokens(residual_window: int) -> int:
    """Tokens that a sequence's window takes the memory of; 0 without a window."""
    return residual_window + TOKEN_GROUP if residual_window else 0


def coded_tokens(context: int, residual_window: int) -> int:
    """L: of `context` tokens, those that the query at the last of them reads as codes; all without a window."""
    return max(0, context - residual_window) // TOKEN_GROUP * TOKEN_GROUP if residual_window else context
