"""FlashAttention-3: TMA, wgmma and softmax beside each other, on Hopper."""
