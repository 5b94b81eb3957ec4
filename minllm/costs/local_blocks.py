"""The memory of a sequence in a paged cache whose layers with a sliding window keep only their window (cache/window_blocks.py).

A layer that sees the whole context has ceil(t / b) blocks of b tokens for t tokens. A layer with a window of W has at most ceil(W / b) + 2:
a window may begin and end within blocks, and the next token may need another one.
"""

from minllm.cache.block_pool import blocks_needed
from minllm.cache.window_blocks import WindowRoom
from minllm.models.config import ModelConfig
from minllm.models.parts.grouped_attention import key_value_width


def local_block_bytes(config: ModelConfig, context: int, block_size: int, itemsize: float) -> tuple[int, int]:
    """(bytes allocated, bytes that hold tokens) for a sequence of `context` tokens, over all layers.

    itemsize: bytes per cached number. Without a mix of both kinds of layers (ModelConfig.mixed_window) all layers keep all tokens.
    """
    blocks, tokens, held = blocks_needed(context, block_size), 0, 0
    for window in config.sliding_windows if config.mixed_window else (0,) * config.num_hidden_layers:
        of_layer = min(blocks, WindowRoom(window, block_size, 0).blocks_of(0)) if window else blocks
        tokens += of_layer * block_size
        held += min(context, window) if window else context
    each = key_value_width(config) * itemsize
    return int(tokens * each), int(held * each)
