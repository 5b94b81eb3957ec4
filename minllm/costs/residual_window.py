"""The cost of a residual window: the newest tokens of each running sequence are also kept unquantised.

    memory   (R / G + 1) G tokens per sequence; R is the window, G a group (cache/residual_window.py)
    a step   reads L keys and values as codes, and the rest of the context unquantised; L = floor(max(0, context - R) / G) G

Source: Liu et al. 2024, "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", section 3.2.
"""

from minllm.kernels.quantization.groups import TOKEN_GROUP


def ring_tokens(residual_window: int) -> int:
    """Tokens that the window of a sequence has memory for; 0 without a window."""
    return residual_window + TOKEN_GROUP if residual_window else 0


def coded_tokens(context: int, residual_window: int) -> int:
    """L: how many of `context` tokens the last token's query reads as codes; all of them without a window."""
    return max(0, context - residual_window) // TOKEN_GROUP * TOKEN_GROUP if residual_window else context
